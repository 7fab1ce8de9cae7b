// What a pipeline stage holds: its layers and the parameters of one of its ranks before ZeRO. Pure functions.
#pragma once

#include <cstdint>

#include "lockstep/cost/layer.h"
#include "lockstep/cost/profile/constants.h"
#include "lockstep/plan/layout.h"

namespace lockstep::cost {

// Layers of one of the layout's pp stages, all its chunks together.
std::int64_t layers_on_stage(const Dimensions& model, const plan::Layout& layout, StageSplit split, std::int64_t stage);

// Parameters that one rank of the stage holds: everything but routed experts, divided by tp; and its experts, divided
// by tp and ep.
double dense_parameters_on_rank(const Dimensions& model, const plan::Layout& layout, std::int64_t stage,
                                std::int64_t layers);
double expert_parameters_on_rank(const Dimensions& model, const plan::Layout& layout, std::int64_t layers);

}  // namespace lockstep::cost
