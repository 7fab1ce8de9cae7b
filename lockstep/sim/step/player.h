// Plays one step of a StepProgram: every pass, message and collective of the ranks that differ, as events in time. The
// order of the passes is the table's (plan/pipeline_schedule.h), the one that the engine executes.
//
//   A pass begins when its rank is free and its input has arrived. A message takes none of its sender's time. Data
//   ranks that are coupled go through a pass together: it begins when the last of them can, and ends when all have
//   done their part. When the last backward of every data rank of a stage is done its gradients are reduced; when all
//   stages are, the optimizer runs (the norm of the gradients is everybody's), and the step ends for all together.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "lockstep/sim/step/fabric.h"
#include "lockstep/sim/step/program.h"
#include "lockstep/sim/step/symmetry.h"

namespace lockstep::sim {

// One pass as it was played; seconds since the step began.
struct PlayedPass {
  plan::PipelineTask task;
  double ready = 0;   // its rank is free and its input there
  double loaded = 0;  // data has come
  double begin = 0;   // everybody coupled is there, and what must be gathered first is gathered
  double done = 0;    // its own part
  double end = 0;     // everybody's
};

// What a data rank does on one stage.
struct PlayedStage {
  int data_class = 0;
  int stage = 0;
  std::vector<PlayedPass> passes;  // in the order of the table
  double published = 0;            // what of the weights must be there before the first pass is
  double reduce_begin = 0;         // its last pass is done
  double reduce_end = 0;
  double optimizer_begin = 0, optimizer_end = 0;
};

// A stage's gradients on their way: hidden behind the last backward, or after it.
struct PlayedReduction {
  int stage = 0;
  bool exposed = false;
  double begin = 0, end = 0;
};

struct PlayedStep {
  double seconds = 0;               // until all have ended, host_seconds included
  std::vector<PlayedStage> stages;  // [class x stages + stage]
  std::vector<PlayedReduction> reductions;
  std::uint64_t events = 0;
};

struct PlayOptions {
  bool contention = true;
  double background = 0;  // share of every NIC that checkpoints on their way take
  // Seconds of a pass's own compute on `data_rank`, for the one that is `planned`; empty: as planned, and as the
  // disturbances say. For durations that were measured rank by rank.
  std::function<double(std::int64_t data_rank, int stage, const plan::PipelineTask& task, double planned)> compute = {};
  std::uint64_t seed = 1;  // of the jitter
  std::int64_t step = 1;
};

PlayedStep play_step(const StepProgram& program, const RankMap& ranks, const Symmetry& symmetry,
                     const Disturbances& disturbances, const PlayOptions& options = {});

// One pipeline, one rank each stage, nothing disturbed: as plan::play(), event for event.
std::vector<plan::PlayedTask> played_tasks(const PlayedStep& step, int data_class = 0);

// How many times as long as planned one pass takes on `rank`: 1 where nothing disturbs it. The same number whenever it
// is asked.
double stretch_of(const Disturbances& disturbances, std::uint64_t seed, std::int64_t step, std::int64_t rank,
                  std::size_t pass);

}  // namespace lockstep::sim
