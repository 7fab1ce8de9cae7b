// What every fuzz target does with its bytes: read them; a UserError is an answer, any other way out is a crash that
// libFuzzer reports with the input that caused it.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "lockstep/base/error.h"

namespace lockstep::fuzz {

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "broken: %s\n", what);
  std::abort();
}

template <class Read>
int fuzz_one(const std::uint8_t* data, std::size_t size, Read read) {
  try {
    read(std::string_view(reinterpret_cast<const char*>(data), size));
  } catch (const UserError& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos, "a message of one line");
  }
  return 0;
}

}  // namespace lockstep::fuzz
