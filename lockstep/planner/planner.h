// Planner: Job in, Plan out. The job's own layout; or, where the devices have figures, what search() finds
// (question.h); or plain data parallel over every rank, priced by the tables of a calibrated profile, and where that
// does not fit the first that does of: ZeRO-1, 2, 3, recomputation, gradients reduced in every micro-step being the
// job's own choice.
#pragma once

#include "lockstep/cost/profile/profile.h"
#include "lockstep/plan/plan.h"
#include "lockstep/spec/job.h"

namespace lockstep::planner {

// `profile` may be null: a plan on cpu then has no time prediction, and its reasons say how to get one; GPUs are priced
// by the profile of their kind (cost::engine_profile_for). Pure; no files, no clocks beyond the search time it reports.
// Throws UserError: exit code 3 when the plan needs more memory than a device has (names the largest term, the excess
// and a fix), exit code 2 when the layout is invalid or needs another number of ranks.
plan::Plan make_plan(const spec::Job& job, const cost::Profile* profile = nullptr);

}  // namespace lockstep::planner
