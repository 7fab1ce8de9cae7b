// Refusals: which value of a knob, or which pair of values, a program will not run with, learned from what it refused.
//
// What ran clears all its values and pairs. A refused trial has at least one culprit among those that were never
// cleared; how probable each is follows from the others that could explain the same trials (a noisy-or, by belief
// propagation) and from knobs that the program's own message names. Deterministic; immutable once made; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

class Refusals {
 public:
  struct Point {
    Config config;
    bool refused = false;
    std::string message;
  };
  // `points` in the order they were tried.
  Refusals(const Space& space, std::span<const Point> points);

  // Probability that the program accepts the configuration.
  double accepts(const Config& config) const;
  // Sum over the points of the logarithm of what was predicted of each from those before it.
  double predictive_score() const { return predictive_score_; }

 private:
  using Item = std::uint64_t;  // a value of a knob, or two of them
  struct Refused {
    std::vector<Item> items;
    std::vector<double> priors;  // log odds, the message considered
  };

  std::vector<std::uint32_t> values_of(const Config& config) const;
  static std::vector<Item> items_of(const std::vector<std::uint32_t>& values);
  std::vector<double> priors_of(const std::vector<Item>& items, const std::string& message) const;
  void see(const Point& point);
  void weigh();
  double probability(const std::vector<Item>& items) const;

  std::vector<std::vector<Value>> levels_;  // by knob, those seen
  std::vector<std::string> names_;          // by knob, as compact_name()
  std::unordered_set<Item> cleared_;
  std::vector<Refused> refused_;
  std::unordered_map<Item, double> guilt_;  // probability of being refused, of those in refused points
  double predictive_score_ = 0;
};

}  // namespace lockstep::tune
