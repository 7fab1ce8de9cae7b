// A seeded permutation of [0, n) that is computed, not stored: constant memory however large the data set.
//
// A Feistel network of alternating halves over the smallest power of two >= n, keyed by (seed, epoch); values that
// fall outside [0, n) are sent through again (cycle walking: Black and Rogaway, "Ciphers with Arbitrary Finite
// Domains", CT-RSA 2002). Fewer than two passes are expected. Only integer arithmetic of fixed width: the same
// order on every machine, compiler and standard library. Good for shuffling, not for secrets.
#pragma once

#include <array>
#include <cstdint>

namespace lockstep {

class Permutation {
 public:
  // 1 <= n <= 2^62.
  Permutation(std::int64_t n, std::uint64_t seed, std::uint64_t epoch);

  // The value at `index`; 0 <= index < n.
  std::int64_t operator()(std::int64_t index) const;

 private:
  static constexpr int kRounds = 8;

  std::uint64_t pass(std::uint64_t value) const;

  std::uint64_t n_;
  int right_bits_;
  std::uint64_t left_mask_;
  std::uint64_t right_mask_;
  std::array<std::uint64_t, kRounds> keys_;
};

}  // namespace lockstep
