// One run with everything that a plan says of it, without a search.
#pragma once

#include "lockstep/plan/run.h"
#include "lockstep/planner/search/search.h"

namespace lockstep::planner {

// Memory, prediction, money and checkpoints of `run`, and why: the figures that a search for the same layout and batch
// returns. `request` is the question that the run answers (question.h), complete(). Throws UserError (exit code 3)
// where it needs more memory than a device has: names the largest term, the excess and a fix.
plan::Candidate candidate_of(const SearchRequest& request, const plan::Run& run);

// Memory alone, as cost::memory_of() counts it (null: what the engine holds): what can be said without a prediction.
// Throws as candidate_of() does.
plan::Candidate counted_candidate(const plan::Run& run, const cost::Profile* profile = nullptr);

// The memory of the run's snapshots, with a sentence: copies of the state that lie beside the step's memory, on the CPU
// in the same, for a GPU in the host's (which the ranks look at when they start). Throws UserError (exit code 3) where
// the job insists on them and they do not fit.
void add_snapshots(const plan::Run& run, plan::Candidate& candidate);

// Why this layout where nothing was searched.
std::string layout_reason(const plan::Layout& layout, bool given);

// The cluster's device with the least memory; asserts that there is one.
const spec::Device& smallest_device(const spec::Cluster& cluster);

}  // namespace lockstep::planner
