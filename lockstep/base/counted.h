// How many of what, for people.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep {

// "1 rank", "2 ranks", "3 launches".
inline std::string counted(std::int64_t count, std::string_view what) {
  return std::to_string(count).append(" ").append(what).append(count == 1 ? "" : what.ends_with('h') ? "es" : "s");
}

}  // namespace lockstep
