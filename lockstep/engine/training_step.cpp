#include "lockstep/engine/training_step.h"

#include <array>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/engine/schedule.h"

namespace lockstep::engine {
namespace {

// Hands the next step's batches to the executor.
void stage_next(TrainingState& state) {
  std::vector<data::Batch> batches;
  while (batches.empty() || !batches.back().last_of_step) batches.push_back(state.loader->next());
  state.staged = {batches.back().global_samples, state.loader->position()};
  state.executor->stage(std::move(batches));
}

}  // namespace

StepResult run_step(TrainingState& state, const spec::Job& job, StepWishes wishes) {
  const double begin = monotonic_seconds();
  if (!state.staged) stage_next(state);
  const double fetched = monotonic_seconds();
  const TrainingState::Staged now = *std::exchange(state.staged, std::nullopt);
  StepInput input;
  input.step = state.step;
  input.learning_rate = learning_rate_at(job.optimizer, state.step, state.total_steps);
  input.wishes = wishes;
  if (state.step + 1 < state.total_steps) input.meanwhile = [&] { stage_next(state); };
  StepResult result = state.executor->step(input);
  state.step += 1;
  state.position = now.behind;
  result.samples = now.samples;
  result.tokens = result.samples * state.datasets.train->tokens_per_sample();
  result.data_seconds += fetched - begin;
  result.seconds = monotonic_seconds() - begin;
  return result;
}

EvaluationResult evaluate(TrainingState& state, const spec::Job& job, const plan::Layout& layout,
                          comm::Communicator& world) {
  state.executor->share_buffers();
  data::LoaderOptions options;
  options.micro = job.batch.micro;
  options.data_rank = state.executor->data_rank();
  options.data_world = layout.data_ranks();
  options.shuffle = false;
  options.num_workers = job.loader.num_workers;
  options.prefetch_factor = job.loader.prefetch_factor;
  options.epochs = 1;
  options.pinned = state.pinned;
  data::Loader loader(state.datasets.evaluation, options);

  const torch::NoGradGuard no_grad;
  const std::int64_t padding_id = state.datasets.evaluation->padding_id();
  std::array<double, 3> sums = {0.0, 0.0, 0.0};  // loss, targets, hits
  for (std::int64_t done = 0; !loader.done() && (job.evaluation.batches == 0 || done < job.evaluation.batches);
       ++done) {
    const EvaluationSums part = state.executor->evaluate(loader.next(), padding_id);
    sums[0] += part.loss;
    sums[1] += part.targets;
    sums[2] += part.correct;
  }
  world.all_reduce({sums.data(), sums.size(), comm::DType::kF64}).wait();
  const double targets = std::max(1.0, sums[1]);
  return {sums[0] / targets, sums[2] / targets, static_cast<std::int64_t>(sums[1])};
}

}  // namespace lockstep::engine
