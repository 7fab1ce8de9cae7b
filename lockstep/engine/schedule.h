// Learning rate as a pure function of the step, so that resuming needs no state.
#pragma once

#include <cstdint>

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
double learning_rate_at(const spec::Optimizer& options, std::int64_t step, std::int64_t total_steps);

}  // namespace lockstep::engine
