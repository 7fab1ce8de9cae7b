// Racing: a trial that is clearly worse than the best so far is not measured to its end.
#pragma once

#include <cstddef>
#include <span>

#include "lockstep/tune/study/trial.h"

namespace lockstep::tune {

// Only what the search explores; figures that are reported are always measured in full.
inline bool may_stop_early(Purpose purpose) { return purpose == Purpose::kExplore; }

// The state of the race when a trial starts. A value; const members are thread-safe.
class Race {
 public:
  explicit Race(std::span<const Trial> history);

  // Is the upper bound of what these samples promise (three standard errors within the launch and three of the spread
  // between launches) more than 5% below the best? Needs six samples, four of them after warm-up.
  bool is_hopeless(std::span<const double> samples) const;

  double best() const { return best_; }                        // of configurations, mean of their launches; 0: none
  double launch_variance() const { return launch_variance_; }  // of the logarithm

 private:
  double best_ = 0;
  double launch_variance_ = 0;
};

}  // namespace lockstep::tune
