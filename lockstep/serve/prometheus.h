// Running runs, and those that ended a few minutes ago, as Prometheus' metrics (docs/reference/prometheus.md).
#pragma once

#include <string>

#include "lockstep/serve/exposition.h"
#include "lockstep/serve/run_values.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::serve {

inline constexpr double kExportedAfterEndSeconds = 300.0;
inline constexpr std::size_t kMostExportedRuns = 100;
inline constexpr std::size_t kMostExportedRanks = 1024;  // of each run

// What a run is, is one series, lockstep_run_info, to join with; the others carry `run`, and `rank` where it matters.
std::string metrics_text(const telemetry::RunStore& store, ExpositionFormat format, double now);

}  // namespace lockstep::serve
