// What `lockstep watch` shows of a run at one moment, read from the store.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/report/goodput.h"
#include "lockstep/report/incidents.h"
#include "lockstep/report/memory_terms.h"
#include "lockstep/report/run_facts.h"
#include "lockstep/report/run_page/plots.h"
#include "lockstep/report/run_report.h"
#include "lockstep/report/standing.h"
#include "lockstep/report/waterfall.h"
#include "lockstep/telemetry/progress.h"

namespace lockstep::report {

struct WatchView {
  RunFacts facts;  // means are of the last steps
  double read_at = 0.0;
  telemetry::ProgressSample now;    // the newest step
  std::vector<ReportCurve> curves;  // over all steps, one point per bucket
  Waterfall waterfall;
  MemoryTerms memory;
  Incidents incidents;
  Goodput goodput;
  std::vector<Standing> standings;
  std::vector<UsageOfRank> usage;
  HeatMap heat;                                 // of the last steps
  std::vector<telemetry::SpanBatch> last_step;  // spans of the newest step that has them; by rank

  const std::vector<telemetry::Point>& curve(std::string_view metric) const;
};

// Reads a few thousand values, however long the run is. Throws UserError when there is no such run.
WatchView read_watch_view(const telemetry::RunStore& store, const std::string& id, std::size_t columns);

// One line per change for other programs: {"schema": "lockstep.watch/1", ...} (docs/reference/report.md).
nlohmann::json to_json(const WatchView& view);

}  // namespace lockstep::report
