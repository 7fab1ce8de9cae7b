// What the pages about a run are made of, read once from the store: its plan, what each rank did with its time, and
// what happened. Plain values; every page (report, watch, serve) says the same because it comes from here.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/plan/plan.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::report {

// Means of one rank over the steps that count; step = data + compute + comm + optimizer + checkpoint + host.
struct PhaseSeconds {
  double step = 0.0;
  double data = 0.0, compute = 0.0, comm = 0.0, optimizer = 0.0, checkpoint = 0.0, host = 0.0;
  double wait = 0.0;                     // of comm
  double forward = 0.0, backward = 0.0;  // of compute
};

struct RankFacts {
  int rank = 0;
  std::int64_t steps = 0;  // that it recorded; 0: none
  PhaseSeconds mean;
  double peak_bytes = 0.0;             // largest it held; 0: not recorded
  double allocated_bytes = 0.0;        // after its last step
  double first_allocated_bytes = 0.0;  // after the first that counts: growth is a leak
};

// What the plan says of the run, as it was executed. An interval that is all zero was not predicted; memory has one
// figure only.
struct PredictedBand {
  plan::Interval step_seconds;
  plan::Interval per_second;  // of RunFacts::unit
  plan::Interval mfu;
  double memory_bytes = 0.0;
};

struct RunFacts {
  telemetry::RunRow run;
  nlohmann::json plan;              // as recorded; null: none
  std::optional<plan::Plan> typed;  // the same, where it is a whole lockstep.plan/1
  std::string unit = "tokens";      // of rates: tokens or samples
  PredictedBand predicted;
  double measured_per_second = 0.0;            // the run's own figure, else the median step; 0: not recorded
  std::int64_t first_step = 0, last_step = 0;  // recorded; 0: no step was
  std::int64_t counted_from = 0;               // steps before it are warm-up, or before the window
  std::vector<RankFacts> ranks;                // those that recorded anything, ascending
  std::vector<int> missing_ranks;              // those whose records are not here
  std::vector<telemetry::Event> events;        // by time
  std::vector<double> first_step_at;      // one per event: of a resume, when the first step after it was done; else 0
  double began_at = 0.0;                  // the first step of the run
  double last_step_at = 0.0;              // its newest step was done
  double total_step_seconds = 0.0;        // of all steps, each counted once
  double total_checkpoint_seconds = 0.0;  // stalls, of these
  double until = 0.0;                     // the end of the run; of one that goes on, its newest record

  std::int64_t steps() const { return last_step > 0 ? last_step - first_step + 1 : 0; }
  // A program of the user's own that `lockstep launch` ran: it has no steps that we know of.
  bool is_foreign() const { return run.info.backend == "command"; }
  bool runs() const { return run.status == telemetry::RunStatus::kRunning; }
  // Mean of the ranks that recorded steps.
  PhaseSeconds mean_phases() const;
  // Whether compute, communication and the rest were recorded, not only the steps.
  bool has_phases() const;
};

// `id`: a run id, its unique beginning, or "last". Throws UserError when there is no such run.
telemetry::RunRow find_run(const telemetry::RunStore& store, const std::string& id);

// `window_steps` > 0: means and rates are of that many last steps, for pages that are made again and again.
RunFacts read_run_facts(const telemetry::RunStore& store, const std::string& id, std::int64_t window_steps = 0);

// MFU at a rate of the run's unit, by the plan: its MFU belongs to its predicted rate; where it has none, from the
// model's FLOPs and the peak of the cluster (cost::mfu). 0: no peak is known.
double mfu_at(const RunFacts& facts, double per_second);

// MFU means GPUs; of a calibrated CPU the same ratio is called efficiency. "mfu" or "efficiency".
const char* measure_name(const RunFacts& facts);

// Where ranks ran whose records are not here, as far as that was recorded.
std::vector<std::string> missing_hosts(const RunFacts& facts);
// "no records of 4 ranks here, rank 4 first; they ran on n2, n3"; "" where none is missing.
std::string missing_text(const RunFacts& facts);

// The part of `rank`'s pipeline; 0 without one.
std::int64_t stage_of(const RunFacts& facts, int rank);

// {"step_seconds": {"low", "expected", "high"}, "tokens_per_second" (or samples), "mfu", "memory_bytes"}; null where
// nothing was predicted.
nlohmann::json to_json(const PredictedBand& band, const std::string& unit);

// A phase that is null was not recorded by any rank.
nlohmann::json to_json(const RankFacts& rank, const RunFacts& facts);

}  // namespace lockstep::report
