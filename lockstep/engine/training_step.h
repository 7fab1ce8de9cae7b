// One optimizer step over all micro-batches of the global batch, and one pass over the evaluation set.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/engine/step_result.h"
#include "lockstep/engine/training_state.h"
#include "lockstep/spec/job.h"

namespace lockstep::engine {

// Collective. Throws Fault when a peer is lost, UserError when a sample turns out to be wrong. may_update: StepInput's.
StepResult run_step(TrainingState& state, StepWishes wishes,
                    const std::function<bool(double, double)>& may_update = {});

struct EvaluationResult {
  double loss = 0.0;      // mean over targets
  double accuracy = 0.0;  // share of arg-max hits
  std::int64_t targets = 0;
  std::vector<std::pair<std::string, double>> metrics = {};  // EvaluationMetrics::values()
};

// Collective over `world`. Uses rank 0's buffers (batch norm's running statistics) on every rank. `on_batch` may be
// empty.
EvaluationResult evaluate(TrainingState& state, const spec::Job& job, const plan::Layout& layout,
                          comm::Communicator& world, const std::function<void()>& on_batch = {});

}  // namespace lockstep::engine
