// Waterfall, memory, incidents and goodput of a run, as report/ makes them for every page, and its diagnosis.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lockstep/telemetry/run_store.h"

namespace lockstep::serve {

// Means are of the last `window_steps` steps: a live page asks again and again. Nothing for a `what` that is none of
// them. The diagnosis looks at the whole run.
std::optional<nlohmann::json> report_json(const telemetry::RunStore& store, const std::string& run,
                                          const std::string& what, std::int64_t window_steps);

}  // namespace lockstep::serve
