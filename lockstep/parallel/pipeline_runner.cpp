#include "lockstep/parallel/pipeline_runner.h"

#include "lockstep/base/clock.h"

namespace lockstep::parallel {

using plan::PipelineTaskKind;
using torch::Tensor;

void run_pipeline(const plan::PipelineSchedule& schedule, int stage, PipelineLinks& links, const PipelineWork& work) {
  const int last = schedule.positions() - 1;
  for (const plan::PipelineTask& task : schedule.ranks[static_cast<std::size_t>(stage)]) {
    const int position = schedule.position(stage, task.chunk);
    Tensor input;
    const bool forward = task.kind == PipelineTaskKind::kForward;
    const bool weights = task.kind == PipelineTaskKind::kWeightGradient;
    if (forward && position > 0) input = links.take(Direction::kForward, position, task.micro);
    if (!forward && !weights && position < last) input = links.take(Direction::kBackward, position, task.micro);
    const double start = monotonic_seconds();
    Tensor output;
    if (weights) {
      work.weight_gradients(task.chunk, task.micro);
    } else if (forward) {
      output = work.forward(task.chunk, task.micro, input);
    } else {
      output = work.backward(task.chunk, task.micro, input, task.kind == PipelineTaskKind::kInputGradient);
    }
    if (work.observe) work.observe(task, start, monotonic_seconds());
    if (forward && position < last) links.hand(Direction::kForward, position + 1, task.micro, output);
    if (!forward && !weights && position > 0) links.hand(Direction::kBackward, position - 1, task.micro, output);
  }
  links.finish();
}

}  // namespace lockstep::parallel
