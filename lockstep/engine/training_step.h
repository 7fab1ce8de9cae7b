// One optimizer step over all micro-batches of the global batch, and one pass over the evaluation set.
#pragma once

#include <cstdint>

#include "lockstep/comm/communicator.h"
#include "lockstep/engine/training_state.h"
#include "lockstep/spec/job.h"

namespace lockstep::engine {

// What a rank tells the others with the loss, so that all act at the same step.
struct StepWishes {
  bool stop = false;
  bool save = false;
};

struct StepResult {
  double loss = 0.0;           // mean over every target of the global batch
  double auxiliary_loss = 0.0; // beside it: load balancing of experts, mean over micro-steps
  double gradient_norm = 0.0;  // before clipping
  double learning_rate = 0.0;
  bool skipped = false;      // gradient not finite: weights were left alone
  std::int64_t samples = 0;  // of the global batch
  std::int64_t tokens = 0;   // of the global batch; 0 for models without tokens
  double seconds = 0.0;
  double data_seconds = 0.0;  // waited for the loader
  double comm_seconds = 0.0;  // waited for gradients after backward
  StepWishes wishes;          // of any rank
};

// Collective over `data_group`. Throws Fault when a peer is lost, UserError when a sample turns out to be wrong.
StepResult run_step(TrainingState& state, const spec::Job& job, comm::Communicator& data_group, StepWishes wishes);

struct EvaluationResult {
  double loss = 0.0;      // mean over targets
  double accuracy = 0.0;  // share of arg-max hits
  std::int64_t targets = 0;
};

// Collective. Uses rank 0's buffers (batch norm's running statistics) on every rank.
EvaluationResult evaluate(TrainingState& state, const spec::Job& job, comm::Communicator& data_group);

}  // namespace lockstep::engine
