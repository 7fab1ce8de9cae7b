// Studies of a job: by our own engine, or priced by the predictor.
#pragma once

#include "lockstep/cli/tune_evaluators.h"
#include "lockstep/cli/tune_request.h"

namespace lockstep::cli {

// The space is --space, else the job's own (its `tune:` section, or the preset for its devices).
TuneRequest make_job_request(const TuneFlags& flags, tune::StudySetup setup);

// What a trial of a study of kind `engine` holds.
struct TrialDevices {
  std::int64_t count = 0;
  bool are_gpus = false;
};
TrialDevices devices_of_trial(const tune::StudySetup& setup);

// Lanes of a study of kind `engine` or `simulate`, and what the planner believes about its configurations.
void add_job_trials(TrialSource& source, const tune::Space& space, const tune::StudySetup& setup, int lanes);
std::unique_ptr<tune::Prior> make_job_prior(const tune::Space& space, const tune::StudySetup& setup);

}  // namespace lockstep::cli
