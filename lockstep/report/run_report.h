// The report of one run from the store: what was predicted, what was measured, and what happened.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/report/goodput.h"
#include "lockstep/report/incidents.h"
#include "lockstep/report/memory_terms.h"
#include "lockstep/report/run_facts.h"
#include "lockstep/report/standing.h"
#include "lockstep/report/terminal/draw.h"
#include "lockstep/report/waterfall.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::report {

// What a rank used of its machine, where its agent looked: programs that are not ours have no steps, but this.
struct UsageOfRank {
  int rank = 0;
  double cpu_percent = 0.0;  // of one core, mean
  double resident_bytes = 0.0;
  double gpu_percent = 0.0;  // mean; 0: not recorded, as is all of this
  double gpu_memory_bytes = 0.0;
};

// A curve of the first rank that recorded it, thinned.
struct ReportCurve {
  std::string metric;
  std::vector<telemetry::Point> points;
};

struct RunReport : RunFacts {
  double mfu = 0.0;  // at the measured rate; of CPUs efficiency; 0: no peak is known
  Waterfall waterfall;
  MemoryTerms memory;
  Incidents incidents;
  Goodput goodput;
  std::vector<Standing> standings;  // one per rank of `ranks`
  std::vector<UsageOfRank> usage;
  std::vector<ReportCurve> curves;  // those of report_curves() and of evaluations that were recorded

  // Measured over predicted rate, minus 1; 0 when either is missing.
  double residual() const;
  // Empty when it was not recorded.
  const std::vector<telemetry::Point>& curve(std::string_view metric) const;
  // Of evaluations, beside the loss: accuracy and what the job names.
  std::vector<ReportCurve> evaluation_metrics() const;
};

// In the order of pages.
std::vector<std::string> report_curves(const std::string& unit);

std::vector<UsageOfRank> read_usage(const telemetry::RunStore& store, const std::string& run);

RunReport make_run_report(const telemetry::RunStore& store, const std::string& id);

std::string to_text(const RunReport& report, const TerminalStyle& style = {});
// Schema "lockstep.report/1" (docs/reference/report.md).
nlohmann::json to_json(const RunReport& report);

}  // namespace lockstep::report
