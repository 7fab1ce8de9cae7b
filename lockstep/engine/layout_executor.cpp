#include "lockstep/engine/layout_executor.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/engine/grad_clip.h"
#include "lockstep/engine/precision.h"
#include "lockstep/engine/pretrained.h"
#include "lockstep/nn/functional.h"
#include "lockstep/nn/model.h"
#include "lockstep/plan/nearest_layout.h"

namespace lockstep::engine {
namespace {

parallel::ParallelModelOptions model_options(const spec::Job& job, const plan::Layout& layout, torch::Device device) {
  const PrecisionPolicy precision = precision_policy(job.precision, device);
  parallel::ParallelModelOptions options;
  options.layout = layout;
  options.device = device;
  options.dtype = precision.model;
  // Products leave gradients in the model's dtype. They are widened to be added up: where nothing is, they stay as they
  // are.
  const bool summed = job.batch.accumulation > 1 || layout.world() > 1 || layout.offload != plan::Offload::kNone;
  const bool narrow = device.is_cuda() && precision.model == torch::kBFloat16 && !summed;
  options.gradient_dtype = narrow ? precision.model : precision.gradient;
  options.master_dtype = precision.master;
  options.seed = static_cast<std::uint64_t>(job.seed);
  options.micro_steps = job.batch.accumulation;
  options.reshard_after_forward = job.communication.reshard_after_forward;
  options.reduce_each_micro_step = job.communication.reduce_each_micro_step;
  options.activation_offload = job.activation_offload;
  options.lora = job.lora;
  return options;
}

// A rank without samples still takes part in every exchange: one sample that no loss counts.
data::Batch with_samples(data::Batch batch) {
  if (batch.samples > 0) return batch;
  std::vector<std::int64_t> input = batch.input.sizes().vec(), target = batch.target.sizes().vec();
  input[0] = target[0] = 1;
  batch.input = torch::zeros(input, batch.input.options());
  batch.target = torch::full(target, nn::kIgnoredTarget, batch.target.options());
  batch.samples = 1;
  return batch;
}

// Tokens of each sample up to its last that is not padding. A plain loop: libtorch's operators on the host wake its
// threads, and the device waits.
torch::Tensor lengths_of(const torch::Tensor& given, std::int64_t padding_id) {
  const torch::Tensor tokens = given.contiguous();
  const std::int64_t samples = tokens.size(0), rows = tokens.size(1);
  torch::Tensor lengths = torch::empty({samples}, tokens.options().pinned_memory(false));
  const std::int64_t* token = tokens.data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < samples; ++i) {
    std::int64_t length = rows;
    while (length > 0 && token[i * rows + length - 1] == padding_id) --length;
    lengths.data_ptr<std::int64_t>()[i] = length;
  }
  return lengths;
}

std::int64_t counted(const torch::Tensor& given) {
  const torch::Tensor target = given.contiguous();
  const std::int64_t* first = target.data_ptr<std::int64_t>();
  return target.numel() - std::count(first, first + target.numel(), nn::kIgnoredTarget);
}

}  // namespace

bool is_plain_data_parallel(const plan::Layout& layout, const spec::Job& job) {
  return layout.dp == layout.world() && layout.zero == 0 && layout.ep == 1 &&
         layout.recompute == plan::Recompute::kNone && layout.offload == plan::Offload::kNone &&
         job.model.experts == 0 && job.lora.rank == 0 && job.weights.empty() &&
         job.data.kind != spec::DataKind::kInstruction && job.model.arch != spec::Arch::kBert;
}

LayoutExecutor::LayoutExecutor(const spec::Job& job, const plan::Layout& layout, comm::Communicator world,
                               torch::Device device)
    : job_(job), device_(device) {
  if (job.model.is_language_model()) {
    plan::require_whole_sequence_pieces(layout, job.model, job.batch.sequence_length);
  }
  model_ = std::make_unique<parallel::ParallelModel>(job.model, model_options(job, layout, device), std::move(world));
  if (!job.weights.empty()) initial_parameters_ = load_pretrained(*model_, job.model, job.weights).initial;
  optimizer_ = std::make_unique<ShardedOptimizer>(job.optimizer, *model_);
  LossScalerOptions scaling;
  scaling.enabled = precision_policy(job.precision, device).loss_scaling;
  scaler_ = LossScaler(scaling);
}

parallel::MicroBatch LayoutExecutor::micro_batch(const data::Batch& given, std::int64_t step, std::int64_t padding_id,
                                                 bool training) {
  const data::Batch batch = with_samples(given);
  parallel::MicroBatch micro;
  if (!device_.is_cpu())
    nn::check_targets(batch.target, job_.model.classes > 0 ? job_.model.classes : job_.model.vocab);
  micro.input = batch.input.to(device_, /*non_blocking=*/true);
  micro.target = batch.target.to(device_, /*non_blocking=*/true);
  micro.context.seed = static_cast<std::uint64_t>(job_.seed);
  micro.context.step = step;
  micro.context.first_index = batch.first_index;
  micro.context.padding_id = padding_id;
  micro.context.training = training;
  if (job_.model.arch == spec::Arch::kBert && padding_id >= 0) {
    const torch::Tensor lengths = lengths_of(batch.input, padding_id);
    // Without padding attention needs no mask, which is quicker on a device.
    const std::int64_t* length = lengths.data_ptr<std::int64_t>();
    const bool padded = std::any_of(length, length + lengths.numel(), [&](auto l) { return l < batch.input.size(1); });
    if (device_.is_cpu() || padded) micro.context.lengths = lengths.to(device_);
  }
  return model_->rows_of(std::move(micro));
}

// Targets that the whole step's loss is the mean of, over all data ranks and micro-batches.
std::int64_t LayoutExecutor::count_targets(const std::vector<data::Batch>& batches) {
  std::int64_t targets = 0;
  for (const data::Batch& batch : batches) {
    targets += counted(batch.target);
  }
  comm::Communicator& everyone = model_->groups().everyone;
  if (everyone.valid()) {
    comm::OpOptions options;
    options.site = "data: targets of the step";
    everyone.all_reduce({&targets, 1, comm::DType::kI64}, comm::ReduceOp::kSum, options).wait();
    targets /= model_->layout().cp;  // cp ranks load the same sequences
  }
  return std::max<std::int64_t>(1, targets);
}

StepResult LayoutExecutor::step(const std::vector<data::Batch>& batches, std::int64_t step, std::int64_t padding_id,
                                double learning_rate, StepWishes wishes) {
  const auto targets = static_cast<double>(count_targets(batches));
  const double micro_steps = static_cast<double>(batches.size());
  std::vector<parallel::MicroBatch> micro_batches;
  for (const data::Batch& batch : batches) {
    parallel::MicroBatch micro = micro_batch(batch, step, padding_id, true);
    micro.loss_weight = scaler_.scale() / targets;
    micro.auxiliary_weight = scaler_.scale() / micro_steps;
    micro_batches.push_back(std::move(micro));
  }
  const parallel::ChunkSums sums = model_->run(micro_batches);

  // One exchange tells everybody the norm, the loss and what anybody wishes.
  const bool counts = model_->has_loss();
  std::array<double, 5> shared = {model_->squared_norm(), counts ? sums.loss : 0.0, sums.auxiliary,
                                  wishes.stop ? 1.0 : 0.0, wishes.save ? 1.0 : 0.0};
  comm::Communicator& world = model_->groups().world;
  if (world.size() > 1) {
    comm::OpOptions options;
    options.site = "world: norm and loss";
    world
        .all_reduce({shared.data(), static_cast<std::int64_t>(shared.size()), comm::DType::kF64}, comm::ReduceOp::kSum,
                    options)
        .wait();
  }
  StepResult result;
  result.gradient_norm = std::sqrt(shared[0]) / scaler_.scale();
  result.skipped = !std::isfinite(result.gradient_norm);
  result.loss = shared[1] / targets;
  result.auxiliary_loss = shared[2] / micro_steps;
  result.learning_rate = learning_rate;
  result.wishes = {shared[3] > 0, shared[4] > 0};
  if (!result.skipped) {
    optimizer_->step(learning_rate, clip_factor(result.gradient_norm, job_.optimizer.clip_norm, scaler_.scale()));
    model_->publish();
  }
  scaler_.update(!result.skipped);
  return result;
}

LayoutExecutor::Evaluation LayoutExecutor::evaluate(const data::Batch& batch, std::int64_t padding_id) {
  const parallel::ChunkSums sums = model_->evaluate(micro_batch(batch, 0, padding_id, false));
  if (!model_->has_loss()) return {};
  return {sums.loss, static_cast<double>(sums.targets), static_cast<double>(sums.correct)};
}

}  // namespace lockstep::engine
