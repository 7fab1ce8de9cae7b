// The two zero-bubble orders (Qi et al. 2023). Internal to make_pipeline_schedule().
#pragma once

#include <vector>

#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::plan {

// ZB-H1: one chunk per rank. `table` has its sizes; the lists of its ranks are the result.
std::vector<std::vector<PipelineTask>> zero_bubble_line(const PipelineSchedule& table);

// ZB-V: two chunks per rank, the second back over the ranks.
std::vector<std::vector<PipelineTask>> zero_bubble_v(const PipelineSchedule& table);

}  // namespace lockstep::plan
