// Peak bytes that tensors of one rank hold in a step of this engine, from what it keeps and when it frees it
// (parallel/chunk.h, parallel/flat_shard.h). The pricer's memory is that of a fitted stack; this is the engine's own,
// without a constant to fit: what a counting allocator measures. Pure functions.
#pragma once

#include <cstdint>

#include "lockstep/plan/plan.h"
#include "lockstep/spec/job.h"
#include "lockstep/spec/model.h"

namespace lockstep::cost {

struct EngineStates {
  double trained_share = 1;     // of the parameters: below 1 adapters alone have gradients and optimizer state
  bool narrow_moments = false;  // as in states.h
};

// Of a rank of stage `stage`; language models. `layout` is valid for the model. capacity and overhead are 0.
//
// A step has three moments that can be the peak: the loss (all activations, and the head's gradient, which is made
// there), the first backward (the same, and a layer's gradient beside its sum), and the last backward (all gradients).
plan::MemoryBreakdown engine_memory(const spec::Model& model, const plan::Layout& layout, const plan::BatchPlan& batch,
                                    spec::OptimizerKind optimizer, std::int64_t stage = 0,
                                    const EngineStates& states = {});

// Elements that one layer keeps from forward to backward for one token: inputs of its parts, norms, projections,
// attention's output, the MLP's pre-activations. Nothing of size sequence x sequence.
double kept_elements_per_token(const spec::Model& model, const plan::Layout& layout);

}  // namespace lockstep::cost
