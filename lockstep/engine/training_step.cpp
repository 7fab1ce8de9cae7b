#include "lockstep/engine/training_step.h"

#include <torch/autograd.h>

#include <array>
#include <chrono>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/engine/grad_clip.h"
#include "lockstep/engine/schedule.h"
#include "lockstep/nn/tensor_comm.h"

namespace lockstep::engine {
namespace {

// With the global batch's samples, this gives the targets of the whole global batch: what every micro-batch's summed
// loss is divided by, so that the sum over ranks and micro-steps of the gradients is the gradient of the global mean,
// however unevenly a short batch was spread.
std::int64_t targets_per_sample(const TrainingState& state) { return state.datasets.train->targets_per_sample(); }

nn::ForwardContext context_for(const data::Batch& batch, const data::Dataset& dataset, const TrainingState& state,
                               const spec::Job& job, bool training) {
  return {.seed = static_cast<std::uint64_t>(job.seed),
          .step = state.step,
          .first_index = batch.first_index,
          .padding_id = dataset.padding_id(),
          .training = training};
}

// From pinned memory the copy runs while the device still computes what was queued before.
data::Batch on_device(data::Batch batch, torch::Device device) {
  batch.input = batch.input.to(device, /*non_blocking=*/true);
  batch.target = batch.target.to(device, /*non_blocking=*/true);
  return batch;
}

// Fetches the next micro-batch and sends it to the device beside what that computes.
void stage_next(TrainingState& state) {
  data::Batch batch = state.loader->next();
  batch.input = state.copies->start(batch.input);
  batch.target = state.copies->start(batch.target);
  state.staged = {std::move(batch)};
}

struct MicroStepSums {
  double loss_sum = 0.0;
  double data_seconds = 0.0;
  std::int64_t samples = 0;
};

MicroStepSums run_micro_steps(TrainingState& state, const spec::Job& job) {
  MicroStepSums sums;
  torch::Tensor loss;  // read once, at the end: reading waits for the device
  for (bool last = false; !last;) {
    const double asked = monotonic_seconds();
    if (state.staged.empty()) stage_next(state);
    const data::Batch batch = std::exchange(state.staged, {}).front();
    state.copies->join();
    sums.data_seconds += monotonic_seconds() - asked;
    last = batch.last_of_step;
    sums.samples = batch.global_samples;
    state.reducer->begin_micro_step(last);
    if (batch.samples == 0) continue;  // a short last batch: this rank only takes part in the exchange
    const nn::ForwardContext context = context_for(batch, *state.datasets.train, state, job, true);
    const nn::LossResult result = state.model->loss(batch.input, batch.target, context);
    const double targets = static_cast<double>(batch.global_samples * targets_per_sample(state));
    (result.loss_sum * (state.scaler.scale() / targets)).backward();
    state.parameters->collect_gradients();  // queued before anything waits for the device
    const torch::Tensor part = result.loss_sum.detach().to(torch::kFloat64);
    loss = loss.defined() ? loss + part : part;
    if (!state.device.is_cpu() && !(last && state.step + 1 >= state.total_steps)) {
      const double began = monotonic_seconds();
      stage_next(state);
      sums.data_seconds += monotonic_seconds() - began;
    }
  }
  if (loss.defined()) sums.loss_sum = loss.item<double>();
  return sums;
}

}  // namespace

namespace {

std::vector<data::Batch> batches_of_a_step(data::Loader& loader) {
  std::vector<data::Batch> batches;
  while (batches.empty() || !batches.back().last_of_step) batches.push_back(loader.next());
  return batches;
}

StepResult run_layout_step(TrainingState& state, const spec::Job& job, StepWishes wishes) {
  const double begin = monotonic_seconds();
  const std::vector<data::Batch> batches = batches_of_a_step(*state.loader);
  const double fetched = monotonic_seconds();
  StepResult result = state.executor->step(batches, state.step, state.datasets.train->padding_id(),
                                           learning_rate_at(job.optimizer, state.step, state.total_steps), wishes);
  state.step += 1;
  result.samples = batches.back().global_samples;
  result.tokens = result.samples * state.datasets.train->tokens_per_sample();
  result.data_seconds = fetched - begin;
  result.seconds = monotonic_seconds() - begin;
  return result;
}

// The next step's batches are fetched while the device works.
StepResult run_device_step(TrainingState& state, const spec::Job& job, StepWishes wishes) {
  const double begin = monotonic_seconds();
  if (state.staged.empty()) state.staged = batches_of_a_step(*state.loader);
  const double fetched = monotonic_seconds();
  StepResult result;
  result.learning_rate = learning_rate_at(job.optimizer, state.step, state.total_steps);
  result.samples = state.staged.back().global_samples;
  result.tokens = result.samples * state.datasets.train->tokens_per_sample();
  result.wishes = wishes;
  state.device_step->submit(state.staged, result.learning_rate);
  state.staged.clear();
  const double submitted = monotonic_seconds();
  if (state.step + 1 < state.total_steps) state.staged = batches_of_a_step(*state.loader);
  const double staged = monotonic_seconds();
  const DeviceStep::Result done = state.device_step->wait();
  state.step += 1;
  state.scaler.update(!done.skipped);
  result.loss = done.loss;
  result.gradient_norm = done.gradient_norm;
  result.skipped = done.skipped;
  // The loader held the device up only as far as fetching outlasted its work.
  result.data_seconds = fetched - begin + std::max(0.0, staged - submitted - done.device_seconds);
  result.seconds = monotonic_seconds() - begin;
  return result;
}

}  // namespace

void share_buffers(TrainingState& state, comm::Communicator& world) {
  const auto share = [&](torch::nn::Module& module) {
    for (torch::Tensor& buffer : module.buffers()) world.broadcast(nn::buffer_of(buffer), 0).wait();
  };
  if (state.device_step) return;  // its models have none
  if (!state.executor) return share(*state.model);
  for (nn::TrainableModel* chunk : state.executor->model().models()) share(*chunk);
}

StepResult run_step(TrainingState& state, const spec::Job& job, comm::Communicator& data_group, StepWishes wishes) {
  if (state.device_step) return run_device_step(state, job, wishes);
  if (state.executor) return run_layout_step(state, job, wishes);
  const double begin = monotonic_seconds();
  state.parameters->zero_gradients();
  const MicroStepSums sums = run_micro_steps(state, job);

  // Queued behind the last bucket, so waiting for it costs no extra round.
  std::array<double, 3>& shared = state.shared_sums;
  shared = {sums.loss_sum, wishes.stop ? 1.0 : 0.0, wishes.save ? 1.0 : 0.0};
  state.reducer->finish();
  comm::Work sharing = data_group.all_reduce({shared.data(), shared.size(), comm::DType::kF64});

  const GradientNorm norm = gradient_norm(*state.parameters, job.optimizer.clip_norm, state.scaler.scale());
  StepResult result;
  result.learning_rate = learning_rate_at(job.optimizer, state.step, state.total_steps);
  result.skipped = !norm.finite;
  if (norm.finite) state.optimizer->step(result.learning_rate, norm.factor);
  state.scaler.update(norm.finite);
  sharing.wait();
  state.step += 1;

  result.samples = sums.samples;
  result.tokens = sums.samples * state.datasets.train->tokens_per_sample();
  result.loss = shared[0] / static_cast<double>(sums.samples * targets_per_sample(state));
  result.gradient_norm = norm.norm;
  result.wishes = {shared[1] > 0, shared[2] > 0};
  result.data_seconds = sums.data_seconds;
  result.comm_seconds = state.reducer->statistics().wait_seconds;
  result.seconds = monotonic_seconds() - begin;
  return result;
}

EvaluationResult evaluate(TrainingState& state, const spec::Job& job, comm::Communicator& world) {
  share_buffers(state, world);
  data::LoaderOptions options;
  options.micro = job.batch.micro;
  options.data_rank = state.executor ? state.executor->model().groups().data_rank : world.rank();
  options.data_world = state.executor ? state.executor->model().layout().data_ranks() : world.size();
  options.shuffle = false;
  options.num_workers = job.loader.num_workers;
  options.prefetch_factor = job.loader.prefetch_factor;
  options.epochs = 1;
  options.pinned = !state.device.is_cpu();
  data::Loader loader(state.datasets.evaluation, options);

  const torch::NoGradGuard no_grad;
  std::array<double, 3> sums = {0.0, 0.0, 0.0};  // loss, targets, hits
  for (std::int64_t done = 0; !loader.done() && (job.evaluation.batches == 0 || done < job.evaluation.batches);
       ++done) {
    const data::Batch batch = loader.next();
    if (state.executor) {  // a rank without samples takes part all the same
      const LayoutExecutor::Evaluation part = state.executor->evaluate(batch, state.datasets.evaluation->padding_id());
      sums[0] += part.loss;
      sums[1] += part.targets;
      sums[2] += part.correct;
      continue;
    }
    if (batch.samples == 0) continue;
    if (state.device_step) {
      const DeviceStep::Evaluation part = state.device_step->evaluate(batch);
      sums[0] += part.loss;
      sums[1] += part.targets;
      sums[2] += part.correct;
      continue;
    }
    const data::Batch near = on_device(batch, state.device);
    const nn::ForwardContext context = context_for(batch, *state.datasets.evaluation, state, job, false);
    const nn::LossResult result = state.model->loss(near.input, near.target, context);
    sums[0] += result.loss_sum.item<double>();
    sums[1] += static_cast<double>(result.count);
    sums[2] += static_cast<double>(result.correct);
  }
  world.all_reduce({sums.data(), sums.size(), comm::DType::kF64}).wait();
  const double targets = std::max(1.0, sums[1]);
  return {sums[0] / targets, sums[2] / targets, static_cast<std::int64_t>(sums[1])};
}

}  // namespace lockstep::engine
