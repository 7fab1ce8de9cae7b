// The report of one run from the store: what was predicted, what was measured, and what happened.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/report/terminal/draw.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::report {

struct RateOfRank {
  int rank = 0;
  double step_seconds = 0.0;     // mean without warm-up
  double compute_seconds = 0.0;  // mean; 0: not recorded
  double memory_bytes = 0.0;     // peak; 0: not recorded
  double slowdown = 0.0;         // compute (else step) time over the median of the ranks, minus 1
  bool straggler = false;        // slowdown above kStragglerSlowdown
};

inline constexpr double kStragglerSlowdown = 0.10;

struct RunReport {
  telemetry::RunRow run;
  std::string unit = "tokens";        // of the two rates below
  double predicted_per_second = 0.0;  // 0: the run had no prediction
  double predicted_low = 0.0, predicted_high = 0.0;
  double measured_per_second = 0.0;  // the run's own figure, else the median step; 0: not recorded
  std::int64_t steps = 0;
  std::vector<telemetry::Point> loss;             // thinned
  std::vector<telemetry::Point> evaluation_loss;  // thinned
  std::vector<RateOfRank> ranks;                  // those that recorded anything
  std::vector<int> missing_ranks;                 // those whose records are not here
  std::vector<telemetry::Event> events;           // checkpoints included
  double peak_memory_bytes = 0.0;                 // largest of the ranks

  // Measured over predicted, minus 1; 0 when either is missing.
  double residual() const;
};

// `id`: a run id, its unique beginning, or "last". Throws UserError when there is no such run.
telemetry::RunRow find_run(const telemetry::RunStore& store, const std::string& id);
RunReport make_run_report(const telemetry::RunStore& store, const std::string& id);

std::string to_text(const RunReport& report, const TerminalStyle& style = {});
// Schema "lockstep.report/1" (docs/reference/run-store.md).
nlohmann::json to_json(const RunReport& report);

}  // namespace lockstep::report
