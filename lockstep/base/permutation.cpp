#include "lockstep/base/permutation.h"

#include <bit>

#include "lockstep/base/counter_random.h"
#include "lockstep/base/error.h"

namespace lockstep {

Permutation::Permutation(std::int64_t n, std::uint64_t seed, std::uint64_t epoch) : n_(static_cast<std::uint64_t>(n)) {
  LOCKSTEP_ASSERT(n >= 1 && n <= (std::int64_t{1} << 62), "size of a permutation out of range");
  const int bits = std::bit_width(n_ - 1);  // 0 for n == 1: the identity
  right_bits_ = (bits + 1) / 2;
  right_mask_ = (std::uint64_t{1} << right_bits_) - 1;
  left_mask_ = (std::uint64_t{1} << (bits - right_bits_)) - 1;
  // Seed and epoch are mixed one after the other, so that (1, 2) and (2, 1) share nothing.
  std::uint64_t state = combine(seed, epoch);
  for (std::uint64_t& key : keys_) key = mix(state += kGolden);
}

std::uint64_t Permutation::pass(std::uint64_t value) const {
  std::uint64_t left = value >> right_bits_;
  std::uint64_t right = value & right_mask_;
  for (int round = 0; round < kRounds; round += 2) {
    left ^= mix(right + keys_[round]) & left_mask_;
    right ^= mix(left + keys_[round + 1]) & right_mask_;
  }
  return (left << right_bits_) | right;
}

std::int64_t Permutation::operator()(std::int64_t index) const {
  std::uint64_t value = static_cast<std::uint64_t>(index);
  do {
    value = pass(value);
  } while (value >= n_);
  return static_cast<std::int64_t>(value);
}

}  // namespace lockstep
