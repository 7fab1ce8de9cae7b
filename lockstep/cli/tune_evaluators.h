// What makes the trials of a study, from what the study's record says (tune/study/store_journal.h).
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/tune/evaluators/evaluator.h"
#include "lockstep/tune/models/prior.h"
#include "lockstep/tune/study/store_journal.h"

namespace lockstep::cli {

struct TrialSource {
  std::vector<std::unique_ptr<tune::Evaluator>> lanes;
  std::unique_ptr<tune::Prior> prior;  // null: nothing is believed beforehand
  std::filesystem::path logs;          // what trials printed; "": nothing is kept
};

// `lanes` 0: as many as the study was set up with. Logs go to a folder of the study under `home`; "" keeps none. Starts
// nothing yet. Throws UserError for a source that this machine or build cannot be.
// `first_lane` is the number of the first of them.
TrialSource make_trial_source(const tune::Space& space, const tune::StudySetup& setup, const std::string& study_id,
                              int lanes = 0, std::size_t first_lane = 0);

// What is believed before anything ran: the planner's prediction of a job; null where there is none.
std::unique_ptr<tune::Prior> make_prior(const tune::Space& space, const tune::StudySetup& setup);

// One lane without logs: what `lockstep recipe --check` launches with.
std::unique_ptr<tune::Evaluator> make_single_evaluator(const tune::StoredStudy& study);

// The devices of each lane where this machine has GPUs: CUDA_VISIBLE_DEVICES "0,1" and "2,3" for two lanes of two.
// Empty strings where there is nothing to divide. UserError (exit 4) when there are too few.
std::vector<std::string> devices_by_lane(const std::vector<std::string>& visible, int lanes, int devices_per_lane);

}  // namespace lockstep::cli
