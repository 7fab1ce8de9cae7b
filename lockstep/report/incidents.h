// Incidents: what happened to a run, its events joined into stories. A rank is lost, that is noticed, the run goes on:
// one incident with its seconds and its lost steps. Plain values.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/report/run_facts.h"

namespace lockstep::report {

enum class IncidentKind : std::uint8_t {
  kFailure = 0,  // a rank or node was lost, or hung; also what ended the run
  kRollback,     // back to an earlier state, for the loss
  kLoss,         // spikes, outliers and steps that were skipped, one after the other
  kAlert,        // a rule fired
  kCheckpoint,   // one could not be saved
  kRecords,      // records are missing
  kHealth,       // of a node
  kReplicas,     // ranks that should hold the same did not
  kResume,       // the run went on from a checkpoint, by hand
  kStopped,      // it was asked to
};
constexpr auto names_of(IncidentKind) {
  return enum_names<IncidentKind::kStopped>("failure", "rollback", "loss", "alert", "checkpoint", "records", "health",
                                            "replicas", "resume", "stopped");
}

struct Incident {
  IncidentKind kind = IncidentKind::kFailure;
  telemetry::Level level = telemetry::Level::kWarning;  // worst of its events
  double began_at = 0.0;
  double ended_at = 0.0;      // 0: has not, or ended the run
  double down_seconds = 0.0;  // in which no step was done because of it
  std::int64_t lost_steps = 0;
  double lost_seconds = 0.0;  // that these steps had taken
  std::int64_t step = -1;     // -1: outside any
  std::vector<int> ranks;
  std::string what;                  // one line
  std::vector<std::string> details;  // further lines, in order
  std::string rule, fix;             // of alerts and findings about nodes
  double cost_percent = 0.0;         // of alerts
};

struct SavedCheckpoint {
  double time = 0.0;
  std::int64_t step = -1;
  double seconds = 0.0, stall_seconds = 0.0, bytes = 0.0;
  std::string path;
};

struct Incidents {
  std::vector<Incident> incidents;  // by begin
  std::vector<SavedCheckpoint> checkpoints;
};

// Whether make_incidents() tells it.
bool is_of_an_incident(const telemetry::Event& event);

Incidents make_incidents(const RunFacts& facts);

nlohmann::json to_json(const Incidents& incidents);  // docs/reference/report.md

}  // namespace lockstep::report
