// The operator sweeps of calibration: matrix products, convolutions, attention, pointwise kernels, memory, optimizer.
#pragma once

#include <set>
#include <vector>

#include "lockstep/cost/flops.h"
#include "lockstep/cost/profile/profile.h"
#include "lockstep/engine/calibrate/sampler.h"

namespace lockstep::engine {

// What to measure: shapes without repetition.
struct SweepPlan {
  std::vector<cost::Operator> matmuls;       // m, n, k
  std::vector<cost::Operator> convolutions;  // samples .. padding
  std::vector<cost::Operator> attentions;    // heads, sequence, head_dim; causal
  std::vector<cost::Operator> pointwise;     // kernel, elements
};

// Adds the shapes of `operators` that the plan does not have yet.
void add_shapes(SweepPlan& plan, const std::vector<cost::Operator>& operators);

// Takes out of `plan` what `done` has.
void remove_shapes(SweepPlan& plan, const SweepPlan& done);

// Shapes that transformers and convolutional networks train with: a handful when `quick`, a grid otherwise.
SweepPlan general_sweep(bool quick);

// Each adds to its table of the profile until the sampler's budget is exhausted, measured on the sampler's device.
// Collective.
void measure_matmuls(Sampler& sampler, const SweepPlan& plan, spec::Precision precision, cost::Profile& profile);
void measure_convolutions(Sampler& sampler, const SweepPlan& plan, spec::Precision precision, cost::Profile& profile);
void measure_attention(Sampler& sampler, const SweepPlan& plan, spec::Precision precision, cost::Profile& profile);
void measure_pointwise(Sampler& sampler, const SweepPlan& plan, spec::Precision precision, cost::Profile& profile);
void measure_memory(Sampler& sampler, cost::Profile& profile);
// Fixed cost of an operator on the CPU, where it comes on top of the work.
void measure_overhead(Sampler& sampler, cost::Profile& profile);
// AdamW with the gradient's norm and reset, as one step makes them, over `parameters` elements.
void measure_optimizer(Sampler& sampler, std::int64_t parameters, cost::Profile& profile);

}  // namespace lockstep::engine
