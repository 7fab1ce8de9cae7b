// Runs as the API tells them (docs/reference/http-api.md).
#pragma once

#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/telemetry/run_store.h"

namespace lockstep::serve {

// What a list shows beside the run's own row. What is unknown is NaN, "" or -1.
struct RunFigures {
  std::string model, layout;
  std::string unit;        // "tokens" or "samples"
  std::int64_t steps = 0;  // the last one recorded
  double loss, per_second, predicted_per_second, mfu, goodput;
  std::int64_t alerts = 0;  // that are firing
};

RunFigures figures_of(const telemetry::RunStore& store, const telemetry::RunRow& row);

// The same without reading again what cannot have changed. Thread-safe; shared by all workers.
class FigureCache {
 public:
  RunFigures get(const telemetry::RunStore& store, const telemetry::RunRow& row);

 private:
  struct Kept {
    double ended_at = 0.0, read_at = 0.0;
    RunFigures figures;
  };
  std::mutex mutex_;
  std::map<std::string, Kept> kept_;
};

nlohmann::json listed_run(const telemetry::RunRow& row, const RunFigures& figures);
// The whole of GET /api/v1/runs/ID.
nlohmann::json whole_run(const telemetry::RunStore& store, const telemetry::RunRow& row, const RunFigures& figures);
nlohmann::json event_json(const telemetry::Event& event);

// A rule inside a run that has fired; it may be over.
struct RuleState {
  std::string rule, subject;  // subject: "rank 3", a node; "": the run
  bool firing = false;
};
// By rule and subject; nothing fires in a run that is not running.
std::vector<RuleState> rule_states(const telemetry::RunStore& store, const telemetry::RunRow& row);

// The newest value of a metric on the lowest rank that recorded it.
std::optional<telemetry::Point> newest_point(const telemetry::RunStore& store, const std::string& run,
                                             const std::string& metric);

// "dp=4,tp=2" of a plan as JSON; "" when it has none.
std::string layout_text(const nlohmann::json& plan);
// {"low", "expected", "high"} of a prediction, what is unknown null; null when nothing is known.
nlohmann::json predicted(const nlohmann::json& plan, const std::string& name);

}  // namespace lockstep::serve
