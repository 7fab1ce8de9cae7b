// The `fitted` object of a profile file.
#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/cost/profile/profile.h"
#include "lockstep/plan/strict_reader.h"

namespace lockstep::cost {

nlohmann::json fitted_to_json(const Fitted& fitted);
Fitted read_fitted(plan::StrictReader reader);

}  // namespace lockstep::cost
