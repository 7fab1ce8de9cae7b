// Random numbers computed from what they are for (seed, epoch, sample, place) instead of drawn from a stream, so that
// they do not depend on ranks, workers or the order of use. Integer arithmetic of fixed width only.
#pragma once

#include <cstdint>

namespace lockstep {

// The increment and the finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): every input bit reaches every
// output bit.
inline constexpr std::uint64_t kGolden = 0x9E3779B97F4A7C15ULL;

constexpr std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

// One key of two; (1, 2) and (2, 1) share nothing.
constexpr std::uint64_t combine(std::uint64_t first, std::uint64_t second) {
  return mix(mix(first + kGolden) ^ (second + kGolden));
}

// A number in [0, bound), as good as uniform for bound below 2^32.
constexpr std::uint64_t below(std::uint64_t random, std::uint64_t bound) { return ((random >> 32) * bound) >> 32; }

}  // namespace lockstep
