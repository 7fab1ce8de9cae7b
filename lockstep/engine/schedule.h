// Learning rate as a pure function of the step, so that resuming needs no state.
#pragma once

#include <cstdint>
#include <memory>

#include "lockstep/plugin/schedule.h"
#include "lockstep/spec/job.h"

namespace lockstep::engine {

// The rate of optimizer step `step`, counted from 0, of `total_steps`. With L = learning_rate, M = min_learning_rate,
// W = warmup_steps, T = total_steps:
//   step < W   L * (step + 1) / W                         (the first step already learns; step W - 1 has L)
//   else       p = min(1, (step - W) / max(1, T - W)) and
//     constant L
//     linear   M + (L - M) * (1 - p)
//     cosine   M + (L - M) * (1 + cos(pi * p)) / 2
// Steps beyond T keep the value at p = 1. bad_input for negative steps and M > L.
// Of a schedule of ours, not a plugin's.
double learning_rate_at(const spec::Optimizer& options, std::int64_t step, std::int64_t total_steps);

// The same for any schedule: a plugin's is opened once, and asked for steps from warmup_steps on. Throws UserError,
// naming the plugin, where it gives something that is no rate.
class LearningRate {
 public:
  explicit LearningRate(const spec::Optimizer& options);
  double at(std::int64_t step, std::int64_t total_steps) const;

 private:
  spec::Optimizer options_;
  std::shared_ptr<const plugin::Schedule> own_;  // null: one of ours
};

}  // namespace lockstep::engine
