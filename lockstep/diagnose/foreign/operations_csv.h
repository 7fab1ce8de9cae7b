// Operation traces: CSV with one row per operation of a pipelined job (dp_rank, stage, rank, step, optype, start_ts,
// duration, seq_id, mc, gmc), and the stragglers in them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/diagnose/diagnosis.h"
#include "lockstep/sim/operations.h"

namespace lockstep::diagnose {

// Columns are found by their names in the first line; operations of kinds that are not known are left out. Throws
// UserError (exit 2) with file:line.
std::vector<sim::Operation> read_operations(std::string_view text, const std::string& name);

// How much slower the job is than without stragglers, and what they are. Means over the steps.
struct StragglerFigures {
  int steps = 0;
  double recorded_seconds = 0.0;
  double replayed_seconds = 0.0;  // without the pauses that the operations do not explain
  double ideal_seconds = 0.0;     // every operation takes what is usual for its kind
  double slow_down() const { return ideal_seconds > 0.0 ? replayed_seconds / ideal_seconds : 1.0; }

  // The step if this part of the differences in computing time were gone.
  double without_slow_workers = 0.0;
  double without_uneven_stages = 0.0;
  double without_uneven_batches = 0.0;
  struct Worker {
    int rank = 0;
    int data_rank = 0;
    int stage = 0;
    double factor = 1.0;  // its computing time against that of its stage
  };
  struct Step {
    std::int64_t step = 0;
    double recorded_seconds = 0.0;
    double simulated_seconds = 0.0;  // replayed with the pauses of this step
    double foretold_seconds = 0.0;   // replayed with the pauses that are usual in the other steps; NaN: there are none
    double replayed_seconds = 0.0;   // without pauses
    double ideal_seconds = 0.0;
  };
  std::vector<Step> per_step;        // ascending
  std::vector<Worker> workers;       // the slowest first
  std::vector<double> stage_factor;  // against the mean of the stages
  double batch_spread = 0.0;         // of one worker's computing times, relative standard deviation
};

StragglerFigures straggler_figures(const std::vector<sim::Operation>& operations);
std::vector<Finding> straggler_findings(const StragglerFigures& figures);

}  // namespace lockstep::diagnose
