// What a DeepSpeed configuration says of layout and batch; optimizer and schedule are whoever writes the rest's.
#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/plan/plan.h"

namespace lockstep::planner {

nlohmann::ordered_json deepspeed_core(const plan::Layout& layout, const plan::BatchPlan& batch);

}  // namespace lockstep::planner
