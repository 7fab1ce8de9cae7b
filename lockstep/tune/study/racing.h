// Racing: a trial that is clearly worse than the best so far is not measured to its end.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/tune/study/trial.h"

namespace lockstep::tune {

// Only what the search explores; figures that are reported are always measured in full.
inline bool may_stop_early(Purpose purpose) { return purpose == Purpose::kExplore; }

// A trial is stopped when what it can still reach is below the best so far with at least this probability.
inline constexpr double kSurelyWorse = 0.995;

// The state of the race when a trial starts. A value; const members are thread-safe.
class Race {
 public:
  explicit Race(std::span<const Trial> history);

  // Is the setting that gave these samples slower than the best, with kSurelyWorse? Two ways to know:
  // - from the first samples: launches that ran to their end tell what a launch makes of its first k samples (warm-up
  //   included) and how differently launches do that; from five such launches on, and with two samples;
  // - from six samples, four of them after warm-up: three standard errors within the launch, and 5% to spare.
  // Both add the spread between launches, of this one and of the best.
  bool is_hopeless(std::span<const double> samples) const;

  double best() const { return best_; }                        // of configurations, mean of their launches; 0: none
  double launch_variance() const { return launch_variance_; }  // of the logarithm

 private:
  bool is_hopeless_start(std::span<const double> samples) const;
  bool is_hopeless_launch(std::span<const double> samples) const;

  double best_ = 0;
  double launch_variance_ = 0;
  double launch_degrees_ = 0;  // how well the variance is known
  struct Ended {               // a launch that ran to its end
    std::vector<double> samples;
    double log_mean = 0;  // after warm-up
  };
  std::vector<Ended> ended_;
};

}  // namespace lockstep::tune
