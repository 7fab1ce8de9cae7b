// A recorded run of ours replayed from its spans, under any layout: the pieces of work of every rank, its exchanges,
// and what waits for what (docs/reference/simulate.md).
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/diagnose/diagnosis.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::diagnose {

struct ReplayedRunStep {
  std::int64_t step = 0;
  double measured_seconds = 0.0;        // from the first rank's begin to the last one's end
  double simulated_seconds = 0.0;       // with the pauses that were measured
  double without_pauses_seconds = 0.0;  // an exchange begins as soon as all its members can
  double straggler_free_seconds = 0.0;  // the same, every rank works as long as the mean of them, exchanges as is usual
  double error() const;                 // of the simulated time, as a share of the measured one
  double slow_down() const;
};

struct ReplayedRun {
  std::string run;  // its id
  int ranks = 0;
  std::vector<ReplayedRunStep> steps;  // ascending
  std::optional<Finding> worst;        // of the run's diagnosis

  ReplayedRunStep mean() const;  // over the steps; its error is that of the means
  double mean_error() const;
  double worst_error() const;
};

// One step: the batches of all ranks. Exposed for tests.
ReplayedRunStep replay_spans(const std::vector<telemetry::SpanBatch>& ranks);

// `run`: an id, its unique beginning, or "last". Throws UserError (exit 2): there is none, it recorded no spans of all
// its ranks in one step, or it ran on several nodes, whose clocks differ.
ReplayedRun replay_run(const telemetry::RunStore& store, const std::string& run);

nlohmann::json to_json(const ReplayedRun& replayed);  // lockstep.replay/1

}  // namespace lockstep::diagnose
