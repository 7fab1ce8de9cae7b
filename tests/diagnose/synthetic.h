// Runs made up for tests: written through the run store and read back as recorded ones are.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/diagnose/run.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::diagnose {

// What one rank does in one step, in seconds; waiting follows from the others.
struct MadeStep {
  double forward = 0.030, backward = 0.060, optimizer = 0.006, host = 0.002, data = 0.001, checkpoint = 0.0;
  double transfer = 0.004;  // blocked on communication beside waiting
  double cpu_wait = 0.0;
  double targets = 1024.0;
  double allocated_bytes = 2e9;
  double expert_imbalance = 0.0;  // 0: not recorded
  double own() const { return forward + backward + optimizer + host + data + checkpoint; }
};

struct MadeRun {
  std::string layout = "dp=4";  // as plan::parse_layout() reads it
  std::string cluster = "1x4xcpu";
  std::int64_t layers = 8, micro = 4, accumulation = 8;
  std::int64_t hidden = 256;
  bool experts = false;  // eight of them in every layer
  int steps = 40;
  double noise = 0.02;           // of every phase
  double capacity_bytes = 16e9;  // of a rank
  double price_per_device_hour = 0.0;
  telemetry::RunStatus status = telemetry::RunStatus::kDone;
  std::function<void(int rank, int step, MadeStep& made)> change;  // may be empty
  std::vector<telemetry::Record> more;                             // events, metrics of nodes, spans
};

struct MadeExchange {
  float begin = 0.0F, seconds = 0.0F;  // from the begin of the step
  std::int64_t bytes = 0;
  std::string group = "everyone";
};
// Spans of a rank in a step: all-reduces, in this order.
telemetry::SpanBatch made_spans(int rank, int step, const std::vector<MadeExchange>& exchanges);

// Its diagnosis; the run is kept in a folder that is removed again.
Diagnosis diagnose(const MadeRun& made);
// Two runs, first and second.
std::unique_ptr<telemetry::RunStore> store_with(const std::vector<MadeRun>& made, const std::string& folder);
std::string id_of(std::size_t number);

}  // namespace lockstep::diagnose
