// Studies of the tuner as the API tells them (docs/reference/http-api.md).
#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/telemetry/study_store.h"

namespace lockstep::serve {

// `store` nullptr: there are none.
nlohmann::json studies_json(const telemetry::StudyStore* store, std::size_t limit);
// With every trial, as the store has them.
nlohmann::json study_json(const telemetry::StudyStore& store, const telemetry::StudyRow& row);

}  // namespace lockstep::serve
