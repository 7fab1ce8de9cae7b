// The machines that runs are on, as the API tells them (docs/reference/http-api.md).
#pragma once

#include <nlohmann/json.hpp>

#include "lockstep/telemetry/run_store.h"

namespace lockstep::serve {

// Nodes of running runs and what their agents said of them last.
nlohmann::json cluster_json(const telemetry::RunStore& store, nlohmann::json dcgm);

}  // namespace lockstep::serve
