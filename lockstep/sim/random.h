// Random numbers of a simulation: fast, and the same on every machine for the same seed.
#pragma once

#include <cmath>
#include <cstdint>

#include "lockstep/base/counter_random.h"

namespace lockstep::sim {

// SplitMix64: one addition and one mix per number; streams of different seeds share nothing that matters here.
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(mix(seed + kGolden)) {}

  std::uint64_t next() { return mix(state_ += kGolden); }
  double uniform() { return static_cast<double>(next() >> 11) * 0x1p-53; }  // [0, 1)
  double exponential(double rate) { return -std::log1p(-uniform()) / rate; }
  std::uint64_t below(std::uint64_t bound) { return lockstep::below(next(), bound); }

 private:
  std::uint64_t state_;
};

}  // namespace lockstep::sim
