// A simulated run in the run store: the same metrics and spans that ranks of a real one record (telemetry/schema.h), so
// that dashboard, reports, traces and diagnosis read it. Its backend is "simulated".
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/plan/plan.h"
#include "lockstep/sim/step/simulation.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::sim {

inline constexpr const char* kSimulatedBackend = "simulated";

struct RecordRequest {
  plan::Plan plan;         // what was played, with its prediction
  std::string name;        // of the run
  std::string asked;       // one line: seed, what was injected, what the cluster would be like
  double ended_at = 0;     // of the last step, seconds since 1970
  double mfu_seconds = 0;  // MFU of a step that takes one second; 0: not known
};

// Ranks whose record says all there is: every one of a small world; of a large one two data ranks of each kind, as many
// as there is room for, and every rank that was named in a disturbance. Ascending, rank 0 among them.
std::vector<std::int64_t> ranks_to_record(const StepsQuestion& question, const Symmetry& symmetry);

// One rank in one step.
struct RankStep {
  telemetry::MetricBatch metrics;
  telemetry::SpanBatch spans;
};
RankStep rank_step(const StepsQuestion& question, const Simulation& simulation, std::int64_t step, std::int64_t rank);

// Writes the run and returns its id. Spans are kept of the last twenty steps.
std::string record(const StepsQuestion& question, const Simulation& simulation, const RecordRequest& request,
                   telemetry::RunStore& store);

}  // namespace lockstep::sim
