// Peak bytes that one rank holds in a step of this engine: from what it keeps and when it frees it (parallel/chunk.h,
// parallel/flat_shard.h), or what the fused step cuts from its arena (fused/memory.h). Counted, with nothing fitted:
// the one memory of a run of Lockstep that `plan`, `train` and `tune` state. Pure functions.
#pragma once

#include <cstdint>

#include "lockstep/cost/layer.h"
#include "lockstep/plan/run.h"

namespace lockstep::cost {

// What every layout and batch of a question share: built once where layouts are priced in a loop.
struct EngineQuestion {
  EngineQuestion() = default;
  explicit EngineQuestion(const plan::Run& run);

  Dimensions model;            // language models
  double output_width = 0;     // classes or vocabulary: what the loss has a logit for
  double sample_elements = 0;  // images: kept by one sample from forward to backward, and the largest gradient beside
  double parameters = 0;       // images, scripted modules
  spec::ScriptFacts script;    // scripted modules
  bool is_gpu = false;
  double trained_share = 1;  // of the parameters: below 1 adapters alone have gradients and optimizer state
  spec::OptimizerKind optimizer = spec::OptimizerKind::kAdamW;
  spec::Communication communication;
  bool activation_offload = false;
};

// Of a rank of the sharded executor at `stage`. `layout` is valid for the model. capacity and overhead are 0.
//
// A step has three moments that can be the peak: the loss (all activations, and the head's gradient, which is made
// there), the first backward (the same, and a layer's gradient beside its sum), and the last backward (all gradients,
// which ZeRO-0 holds at all times).
plan::MemoryBreakdown engine_memory(const EngineQuestion& question, const plan::Layout& layout,
                                    const plan::BatchPlan& batch, std::int64_t stage);

// Bytes of weights and optimizer state that a rank of `stage` answers for, wherever they lie: its shard under ZeRO.
struct StateOnRank {
  double dense = 0, expert = 0;
};
StateOnRank engine_state(const plan::Run& run, std::int64_t stage);

// Of a rank of `stage` under the run's executor. capacity and overhead are 0.
plan::MemoryBreakdown engine_memory(const plan::Run& run, std::int64_t stage);
// Of the rank that lacks most, with the capacity of its device.
plan::MemoryBreakdown engine_memory(const plan::Run& run);

}  // namespace lockstep::cost
