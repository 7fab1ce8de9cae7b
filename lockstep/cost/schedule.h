// Pipeline schedules in closed form: idle time and micro-batches held. Pure functions.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/plan/layout.h"

namespace lockstep::cost {

// Idle seconds of the slowest stage in one step, where `others` is the sum over the other stages of forward + backward
// of one micro-batch, and `others_weight` the same sum of the weight gradients alone.
// GPipe, 1F1B: fill and drain pass every other stage once (Narayanan et al. 2021, PipeDream-flush: (p-1)(f+b)).
// Interleaved over v chunks: 1/v of it (Narayanan et al. 2021, section 2.2).
// Zero bubble: weight gradients fill the drain; ZB-H1 leaves (p-1)(F + B - W), with two chunks per rank ZB-V leaves
// (p-1)(F + B - 2W) (Qi et al. 2023), B without W.
inline double bubble_seconds(plan::Schedule schedule, std::int64_t virtual_stages, double others,
                             double others_weight) {
  switch (schedule) {
    case plan::Schedule::kNone:
      return 0;
    case plan::Schedule::kGpipe:
    case plan::Schedule::kOneForwardOneBackward:
      return others;
    case plan::Schedule::kInterleaved:
      return others / static_cast<double>(virtual_stages);
    case plan::Schedule::kZeroBubble:
      return std::max(0.0, others - (virtual_stages > 1 ? 3 : 2) * others_weight);
  }
  return others;
}

// Chunk activations that stage `stage` of `stages` holds at its peak; a chunk is 1/virtual_stages of the stage's
// layers. 1F1B: stages - stage micro-batches; interleaved: the warm-up of Megatron's schedule,
// 2(stages - stage - 1) + (v - 1) stages, and one; GPipe: all; zero bubble (ZB-H1) keeps what 1F1B's first stage does
// until the weight gradients are done.
inline std::int64_t chunks_in_flight(plan::Schedule schedule, std::int64_t stages, std::int64_t stage,
                                     std::int64_t virtual_stages, std::int64_t micro_batches) {
  switch (schedule) {
    case plan::Schedule::kNone:
      return 1;
    case plan::Schedule::kGpipe:
      return micro_batches;
    case plan::Schedule::kOneForwardOneBackward:
      return std::min(micro_batches, stages - stage);
    case plan::Schedule::kInterleaved:
      return std::min(micro_batches * virtual_stages, 2 * (stages - stage - 1) + (virtual_stages - 1) * stages + 1);
    case plan::Schedule::kZeroBubble:
      return std::min(micro_batches, stages) * virtual_stages;
  }
  return 1;
}

}  // namespace lockstep::cost
