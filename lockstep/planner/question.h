// A Job as a question for the search: the only conversion of one into the other.
#pragma once

#include "lockstep/planner/search/search.h"

namespace lockstep::planner {

// Everything that the job settles, complete(). Its layout, where it has one, is the constraints' (wholly fixed, with
// its micro-batch); else the job's micro-batch x accumulation on every rank is the global batch alone. tokens are the
// job's, or its steps'; 0 where it counts epochs. The adapters of the job go into the profile. Throws UserError (exit
// code 2) for a layout that the verdict refuses.
SearchRequest question_of(const spec::Job& job, const cost::Profile& profile);

// The length of a job that counts steps, in tokens (samples for images).
double work_of_steps(std::int64_t steps, const SearchRequest& request);

}  // namespace lockstep::planner
