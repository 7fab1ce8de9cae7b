// Schedule: the learning rate as a function of the step, so that resuming needs no state.
#pragma once

#include <cstdint>

namespace lockstep::plugin {

// Where the run is, and what the job asks for.
struct Progress {
  std::int64_t step = 0;  // from 0
  std::int64_t total_steps = 0;
  std::int64_t warmup_steps = 0;
  double learning_rate = 0.0;      // optimizer.learning_rate
  double min_learning_rate = 0.0;  // optimizer.min_learning_rate
};

// Constructed with the keys of optimizer.schedule_options. Any thread, several at once.
class Schedule {
 public:
  virtual ~Schedule() = default;
  // The rate of a step from warmup_steps on (before, Lockstep rises to learning_rate): 0 or more.
  virtual double rate(const Progress& progress) const = 0;
};

}  // namespace lockstep::plugin
