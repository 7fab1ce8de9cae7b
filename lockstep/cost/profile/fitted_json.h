// The `fitted` object of a profile file.
#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/base/json.h"
#include "lockstep/cost/profile/profile.h"

namespace lockstep::cost {

nlohmann::json fitted_to_json(const Fitted& fitted);
Fitted read_fitted(const JsonReader& reader);

}  // namespace lockstep::cost
