// Refusals: why a program refuses settings, learned from what it refused and what it accepted.
//
// What ran clears every rule (refusal_rules.h) that would have forbidden it, and all its values and pairs. A refused
// trial has at least one culprit among the rules that were never cleared; how probable each is follows from the others
// that could explain the same trials (a noisy-or, by belief propagation) and from knobs that the program's own message
// names. Rules that explain exactly the same trials are one suspect, of which one is guilty: they share its guilt by
// their odds. Deterministic; immutable once made; thread-safe.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "lockstep/tune/models/refusal_rules.h"
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
  double accepts(const Config& config) const { return probability(refusal_point(space_, config)); }
  // Sum over the points of the logarithm of what was predicted of each from those before it.
  double predictive_score() const { return predictive_score_; }

 private:
  struct Suspect {
    RefusalRule rule;
    double odds = 0;          // logarithm, the messages considered
    double guilt = 0;         // probability
    std::uint32_t group = 0;  // of those that explain the same refused points
    bool cleared = false;
    bool suspected = false;  // explains a refused point seen so far
  };

  void suspect(std::span<const RefusalPoint> at, std::span<const Point> points);
  void see(const RefusalPoint& at, bool refused);
  std::vector<double> group_suspects();  // sum of the odds of each group
  void weigh();
  void keep_guilty();
  double probability(const RefusalPoint& at) const;
  double novelty(const RefusalPoint& at) const;

  Space space_;
  std::vector<std::string> names_;             // by knob, as compact_name()
  std::unordered_set<std::uint64_t> cleared_;  // values and pairs that ran, or were refused
  std::vector<Suspect> suspects_;
  std::vector<std::vector<std::uint32_t>> refused_;  // by refused point: the suspects that explain it
  double predictive_score_ = 0;
};

}  // namespace lockstep::tune
