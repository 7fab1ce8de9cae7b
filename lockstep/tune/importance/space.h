// A sample of the space with what is believed of it, and the small designs that importance is computed from: rows (one
// knob through all its levels) and quads (two knobs at two levels each). Inner part of importance_*.cpp.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "lockstep/tune/importance/importance.h"

namespace lockstep::tune {

inline constexpr std::size_t kFunctionDraws = 300;

struct RowPoint {
  Candidate at;
  std::size_t level = 0;  // of the row's knob
};

// Configurations that differ in one knob alone: all of its levels that are valid there.
using Row = std::vector<RowPoint>;

// x, x with one knob, with the other and with both at another level.
using Quad = std::vector<Candidate>;

// Not thread-safe: rows and quads are drawn. `beliefs` outlive it.
class SpaceView {
 public:
  SpaceView(const Beliefs& beliefs, std::uint64_t seed);

  const Space& space() const { return *beliefs_.space; }
  const std::vector<Candidate>& sample() const { return sample_; }  // uniform over the valid configurations
  std::size_t levels(std::size_t knob) const { return levels_[knob].size(); }

  // The level nearest to a configuration's; nullopt when the knob is inactive there.
  std::optional<std::size_t> level_of(std::size_t knob, const Config& config) const;

  // Through a member of the sample: a row is found as often as it has members.
  Row row(std::size_t knob);
  // nullopt when none was found whose corners are all valid.
  std::optional<Quad> quad(std::size_t first, std::size_t second);

 private:
  const Candidate& draw() { return sample_[random_() % sample_.size()]; }
  std::vector<Value> levels_of(std::size_t knob) const;

  const Beliefs& beliefs_;
  Random random_;
  std::vector<Candidate> sample_;
  std::vector<std::vector<Value>> levels_;
};

// Weighted sums.
struct Moments {
  double weight = 0, sum = 0, square = 0;
  void add(double w, double value) {
    weight += w;
    sum += w * value;
    square += w * value * value;
  }
  double mean() const { return weight > 0 ? sum / weight : 0; }
  double variance() const { return weight > 0 ? std::max(0.0, square / weight - mean() * mean()) : 0; }
};

// Draws of the function's difference from its posterior mean at the given points.
Draws difference_draws(const Beliefs& beliefs, const std::vector<const Candidate*>& points, std::uint64_t seed);

// Pairs of knobs whose interaction stands out; `variance` is that of the function over the space.
std::vector<Interaction> interactions_of(const Beliefs& beliefs, SpaceView& view, double variance, std::uint64_t seed);

}  // namespace lockstep::tune
