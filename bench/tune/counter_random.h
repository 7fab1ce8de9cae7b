// Random numbers as a function of where they are used: no state, so every tool sees the same noise at the same trial,
// and a surface is the same on every machine. SplitMix64's finalizer (Steele, Lea, Flood 2014) over a running hash.
#pragma once

#include <cmath>
#include <cstdint>
#include <initializer_list>
#include <numbers>

namespace lockstep::bench {

inline std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15ULL;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
  return x ^ (x >> 31);
}

inline std::uint64_t key_of(std::initializer_list<std::uint64_t> parts) {
  std::uint64_t key = 0;
  for (std::uint64_t part : parts) key = mix(key ^ mix(part));
  return key;
}

// In (0, 1).
inline double uniform_at(std::uint64_t key) { return (static_cast<double>(mix(key) >> 11) + 0.5) * 0x1.0p-53; }

// Standard normal (Box and Muller).
inline double normal_at(std::uint64_t key) {
  return std::sqrt(-2 * std::log(uniform_at(key_of({key, 1})))) *
         std::cos(2 * std::numbers::pi * uniform_at(key_of({key, 2})));
}

// Draws one after the other from one key.
class Draws {
 public:
  explicit Draws(std::uint64_t key) : key_(key) {}
  double uniform(double low, double high) { return low + (high - low) * uniform_at(key_of({key_, count_++})); }
  double log_uniform(double low, double high) { return std::exp(uniform(std::log(low), std::log(high))); }
  double normal(double deviation) { return deviation * normal_at(key_of({key_, count_++})); }
  int below(int bound) { return static_cast<int>(uniform(0, bound)); }
  bool chance(double probability) { return uniform(0, 1) < probability; }

 private:
  std::uint64_t key_;
  std::uint64_t count_ = 0;
};

}  // namespace lockstep::bench
