// gzip, where the build has zlib.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace lockstep::serve {

// Level 1 (fast) to 9 (small). Nothing in a build without zlib.
std::optional<std::string> gzipped(std::string_view text, int level);

}  // namespace lockstep::serve
