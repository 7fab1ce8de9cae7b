// The loop that executes one rank's list of a pipeline schedule: takes what a task needs from its neighbours, does it,
// hands the result on.
#pragma once

#include <functional>

#include <torch/types.h>

#include "lockstep/parallel/pipeline_links.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::parallel {

// What a rank does for its chunks. Tensors are undefined where the model begins or ends.
struct PipelineWork {
  std::function<torch::Tensor(int chunk, int micro, const torch::Tensor& x)> forward;
  // With `split` the weight gradients come later.
  std::function<torch::Tensor(int chunk, int micro, const torch::Tensor& gradient, bool split)> backward;
  std::function<void(int chunk, int micro)> weight_gradients;
  // May be empty: told of every task, with the seconds (monotonic clock) from when its input was there to its end.
  std::function<void(const plan::PipelineTask& task, double start, double end)> observe;
};

// Blocks until this rank's list is done and everything it sent has left. Throws Fault.
void run_pipeline(const plan::PipelineSchedule& schedule, int stage, PipelineLinks& links, const PipelineWork& work);

}  // namespace lockstep::parallel
