// A pipeline's step played task by task and drawn: which stage works on which micro-batch when, and who waits.
// Pure functions.
#pragma once

#include <string>
#include <vector>

#include "lockstep/plan/layout.h"
#include "lockstep/report/draw.h"

namespace lockstep::report {

// Seconds of one micro-batch on one stage (all its chunks together).
struct StageSeconds {
  double forward = 0;
  double backward = 0;  // both gradients
  double send = 0;      // to the next stage; the same back
};

struct PipelineQuestion {
  plan::Schedule schedule = plan::Schedule::kOneForwardOneBackward;
  int chunks = 1;         // virtual stages per rank; GPipe and 1F1B have one
  int micro_batches = 1;  // interleaved: rounded up to a multiple of the stages, as its order wants
  std::vector<StageSeconds> stages;
};

enum class TaskKind { kForward, kBackward, kWeightGradient };

struct PipelineTask {
  TaskKind kind = TaskKind::kForward;
  int stage = 0;
  int chunk = 0;
  int micro = 0;
  double start = 0;
  double end = 0;
};

// Every task with its time, in order of their start per stage. GPipe, 1F1B and interleaved follow their fixed order
// (Huang et al. 2019; Narayanan et al. 2021); zero bubble (Qi et al. 2023), in a V where it
// has two chunks, does input gradients first, and weight gradients when nothing else is ready, holding no more
// micro-batches than 1F1B's first stage; it is played greedily, so it may idle a little more than the optimum.
std::vector<PipelineTask> play_pipeline(const PipelineQuestion& question);

// Share of stages x time that is idle in the played step.
double idle_share(const std::vector<PipelineTask>& tasks, int stages);

// One row per stage: digits are forwards by micro-batch (1, 2, ... modulo 10), letters (a, b, ...) their backwards, w
// weight gradients, '.' is idle. Beyond `most_rows` stages those in the middle are left out. Every line ends with '\n'.
std::string draw_timeline(const std::vector<PipelineTask>& tasks, int stages, int cells, int most_rows,
                          const DrawStyle& style);

}  // namespace lockstep::report
