// What one optimizer step has to tell.
#pragma once

#include <cstdint>

#include "lockstep/checkpoint/saver.h"
#include "lockstep/telemetry/ledger.h"

namespace lockstep::engine {

// What a rank tells the others with the loss, so that all act at the same step.
struct StepWishes {
  bool stop = false;
  bool save = false;
  checkpoint::SaveProgress saving = {};  // of the save in flight; in the result summed over all ranks
  bool spoiled = false;                  // chaos: this rank's gradient is not to be a number
  telemetry::SamplesRead read = {};      // in this step; in the result by all ranks
  double seconds = 0.0;                  // of the step before; in the result summed over all ranks
  double comm_seconds = -1.0;            // the same; in the result the least of any rank. -1: not known
};

struct StepResult {
  double loss = 0.0;            // mean over every target of the global batch
  double auxiliary_loss = 0.0;  // beside it: load balancing of experts, mean over micro-steps
  double gradient_norm = 0.0;   // before clipping
  double learning_rate = 0.0;
  bool skipped = false;      // gradient not finite: weights were left alone
  bool withheld = false;     // the verdict was against the update (StepInput::may_update): the same
  std::int64_t samples = 0;  // of the global batch
  std::int64_t tokens = 0;   // of the global batch; 0 for models without tokens
  double seconds = 0.0;
  double data_seconds = 0.0;  // waited for the loader
  std::int64_t targets = 0;   // that this rank's samples held
  // Tokens of the busiest expert over the mean, of this rank's last micro-batch, in the worst layer; 0: no experts.
  double expert_imbalance = 0.0;
  StepWishes wishes;  // of any rank
};

}  // namespace lockstep::engine
