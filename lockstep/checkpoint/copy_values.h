// Copying tensors while training waits, and looking at every value on the way: two passes over memory in one.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <cstdint>

namespace lockstep::checkpoint {

// Which bits of a value are all set when it is infinite or not a number; none for whole numbers.
struct ExponentBits {
  int width = 4;  // bytes of a value: 2, 4 or 8
  std::uint64_t bits = 0;
};
ExponentBits exponent_bits(torch::ScalarType dtype);

// Copies past the caches, which the next step wants for itself. Both ends are aligned to the values' width. Returns
// whether all of them are finite.
bool copy_values(unsigned char* to, const unsigned char* from, std::size_t bytes, ExponentBits exponent);

}  // namespace lockstep::checkpoint
