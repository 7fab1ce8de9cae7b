// A Job as a question for the search.
#pragma once

#include "lockstep/cost/profile/profile.h"
#include "lockstep/plan/plan.h"
#include "lockstep/spec/job.h"

namespace lockstep::planner {

// The plan of a job without a layout on a cluster whose devices have figures. The global batch is the job's micro-batch
// x accumulation on every rank; micro-batch and layout are the best there are. Without a fitted `profile` that of the
// devices is used. Throws UserError with exit code 3 where nothing fits.
plan::Plan plan_by_search(const spec::Job& job, const cost::Profile* profile);

}  // namespace lockstep::planner
