// `lockstep tune --on slurm`: trials as tasks of a job array, while the study stays with the process that was started.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "lockstep/cli/tune_evaluators.h"
#include "lockstep/tune/evaluators/remote.h"

namespace lockstep::cli {

// The workers of a study's lanes. Destroying it ends them.
class TrialArray {
 public:
  virtual ~TrialArray() = default;
};

// Moves the lanes of `source` to where the study's record says, and submits their workers; null: they stay here. What
// was submitted is said on `notes`.
std::unique_ptr<TrialArray> move_trials(const tune::StoredStudy& study, TrialSource& source, std::FILE* notes);

// `lockstep trial-worker FOLDER LANE`, on the node.
int run_trial_worker(const std::string& folder, std::size_t lane);

}  // namespace lockstep::cli
