#include "lockstep/engine/sharded_executor.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <limits>
#include <numeric>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/engine/precision.h"
#include "lockstep/engine/pretrained.h"
#include "lockstep/engine/whole_tensors.h"
#include "lockstep/nn/functional.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/moe.h"
#include "lockstep/nn/tensor_comm.h"
#include "lockstep/nn/torch_compat.h"
#include "lockstep/plan/verdict.h"
#include "lockstep/telemetry/span_log.h"

namespace lockstep::engine {
namespace {

using telemetry::SpanKind;
using telemetry::SpanScope;

parallel::ParallelModelOptions model_options(const spec::Job& job, const plan::Run& run, const ShardedOptions& given) {
  const torch::Device device = given.device;
  const PrecisionPolicy precision = precision_policy(run.layout.precision, device);
  parallel::ParallelModelOptions options;
  options.layout = run.layout;
  options.device = device;
  options.dtype = precision.model;
  // A module from Python keeps its weights in fp32, and autocast narrows its products: what torch.autocast does.
  options.autocast = run.model.is_scripted() && precision.model == torch::kBFloat16;
  if (options.autocast) options.dtype = torch::kFloat32;
  // Products leave gradients in the model's dtype. They are widened to be added up: where nothing is, they stay as they
  // are.
  const bool summed =
      run.most_micro_steps() > 1 || run.layout.world() > 1 || run.layout.offload != plan::Offload::kNone;
  const bool narrow = device.is_cuda() && precision.model == torch::kBFloat16 && !summed;
  options.gradient_dtype = narrow ? precision.model : precision.gradient;
  options.master_dtype = precision.master;
  options.seed = static_cast<std::uint64_t>(job.seed);
  options.micro_steps = run.batch.accumulation;
  options.reshard_after_forward = run.communication.reshard_after_forward;
  options.reduce_each_micro_step = run.communication.reduce_each_micro_step;
  options.activation_offload = run.activation_offload;
  options.lora = run.lora;
  options.make_model = given.make_model;
  options.initial_values = false;
  options.buckets.bucket_mib = run.communication.bucket_mib;
  options.buckets.compression.kind = run.communication.compression;
  options.buckets.compression.powersgd_rank = run.communication.powersgd_rank;
  options.buckets.compression.seed = static_cast<std::uint64_t>(job.seed);
  return options;
}

// A rank without samples still takes part in every exchange: one sample that no loss counts.
data::Batch with_samples(data::Batch batch) {
  if (batch.samples > 0) return batch;
  std::vector<std::int64_t> input = batch.input.sizes().vec(), target = batch.target.sizes().vec();
  input[0] = target[0] = 1;
  batch.input = torch::zeros(input, batch.input.options());
  batch.target = torch::full(target, nn::kIgnoredTarget, batch.target.options());
  if (batch.documents.defined()) batch.documents = torch::zeros(input, batch.documents.options());
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

ShardedExecutor::ShardedExecutor(const spec::Job& job, const plan::Run& run, comm::Communicator world,
                                 const ShardedOptions& options)
    : job_(job), spec_(run.model), options_(options), copies_(options.device) {
  plan::require_runnable(run);
  model_ = std::make_unique<parallel::ParallelModel>(run.model, model_options(job, run, options), std::move(world));
  optimizer_ = std::make_unique<ShardedOptimizer>(run.optimizer, *model_);
  LossScalerOptions scaling;
  scaling.enabled = precision_policy(run.layout.precision, options.device).loss_scaling;
  scaler_ = LossScaler(scaling);
  if (options.begin_weights) ShardedExecutor::begin_weights();
}

void ShardedExecutor::begin_weights() {
  model_->initialise();
  if (!job_.weights.empty()) initial_parameters_ = load_pretrained(*model_, spec_, job_.weights).initial;
}

std::string ShardedExecutor::describe() const {
  return options_.device.is_cpu() ? "" : "general path, because " + options_.why;
}

parallel::MicroBatch ShardedExecutor::micro_batch(const data::Batch& given, std::int64_t padding_id, bool training) {
  // Images have no exchange inside the model: there a rank without samples computes nothing.
  const data::Batch batch = job_.model.is_language_model() ? with_samples(given) : given;
  parallel::MicroBatch micro;
  if (!options_.device.is_cpu() && !job_.model.is_scripted())
    nn::check_targets(batch.target, job_.model.classes > 0 ? job_.model.classes : job_.model.vocab);
  micro.input = copies_.start(batch.input);
  micro.target = copies_.start(batch.target);
  for (const torch::Tensor& tensor : batch.more_inputs) {
    micro.context.more_inputs.push_back(copies_.start(tensor));
  }
  micro.context.documents = batch.documents;
  micro.context.seed = static_cast<std::uint64_t>(job_.seed);
  micro.context.first_index = batch.first_index;
  micro.context.padding_id = padding_id;
  micro.context.training = training;
  if (job_.model.arch == spec::Arch::kBert && padding_id >= 0) {
    const torch::Tensor lengths = lengths_of(batch.input, padding_id);
    // Without padding attention needs no mask, which is quicker on a device.
    const std::int64_t* length = lengths.data_ptr<std::int64_t>();
    const bool padded = std::any_of(length, length + lengths.numel(), [&](auto l) { return l < batch.input.size(1); });
    if (options_.device.is_cpu() || padded) micro.context.lengths = lengths.to(options_.device);
  }
  return micro;
}

void ShardedExecutor::stage(std::vector<data::Batch> batches) {
  staged_ = {};
  staged_.samples = batches.back().global_samples;
  for (const data::Batch& batch : batches) {
    const std::int64_t each = options_.targets_per_sample;
    staged_.counted += each == 0 ? counted(batch.target) : each * batch.samples;
    staged_.micro_batches.push_back(micro_batch(batch, options_.padding_id, true));
  }
}

// Targets that the whole step's loss is the mean of, over all data ranks and micro-batches.
double ShardedExecutor::targets_of_step(std::int64_t own, std::int64_t samples) {
  std::int64_t targets = options_.targets_per_sample > 0 ? options_.targets_per_sample * samples : own;
  comm::Communicator& everyone = model_->groups().everyone;
  if (options_.targets_per_sample == 0 && everyone.valid()) {
    comm::OpOptions options;
    options.site = "data: targets of the step";
    everyone.all_reduce({&targets, 1, comm::DType::kI64}, comm::ReduceOp::kSum, options).wait();
    targets /= model_->layout().cp;  // cp ranks load the same sequences
  }
  return static_cast<double>(std::max<std::int64_t>(1, targets));
}

// What ranks add up with the loss, at the end of a step.
void ShardedExecutor::fill_shared(const StepWishes& wishes, double squared_norm, const parallel::ChunkSums& sums) {
  const comm::Communicator& world = model_->groups().world;
  const std::array<double, kOwnNumbers> own = {squared_norm,
                                               model_->has_loss() ? sums.loss : 0.0,
                                               sums.auxiliary,
                                               wishes.stop ? 1.0 : 0.0,
                                               wishes.save ? 1.0 : 0.0,
                                               wishes.seconds};
  const std::size_t places = world.size() <= kMostCommPlaces ? static_cast<std::size_t>(world.size()) : 0;
  shared_.assign(kCommAt + places, 0.0);
  std::ranges::copy(own, shared_.begin());
  std::ranges::copy(wishes.saving.numbers(), shared_.begin() + kOwnNumbers);
  std::ranges::copy(wishes.read.numbers(), shared_.begin() + kReadAt);
  if (places > 0) shared_[kCommAt + static_cast<std::size_t>(world.rank())] = wishes.comm_seconds;
}

StepWishes ShardedExecutor::wishes_of_all(bool spoiled) const {
  return {
      .stop = shared_[3] > 0,
      .save = shared_[4] > 0,
      .saving = checkpoint::SaveProgress::of(shared_.data() + kOwnNumbers),
      .spoiled = spoiled,
      .read = telemetry::SamplesRead::of(shared_.data() + kReadAt),
      .seconds = shared_[5],
      .comm_seconds = shared_.size() == kCommAt ? -1.0 : *std::min_element(shared_.begin() + kCommAt, shared_.end())};
}

StepResult ShardedExecutor::step(const StepInput& input) {
  LOCKSTEP_ASSERT(!staged_.micro_batches.empty(), "a step without batches");
  auto staged = std::exchange(staged_, {});
  copies_.join();
  const double targets = targets_of_step(staged.counted, staged.samples);
  const double micro_steps = static_cast<double>(staged.micro_batches.size());
  for (parallel::MicroBatch& micro : staged.micro_batches) {
    micro = model_->rows_of(std::move(micro));
    micro.context.step = input.step;
    micro.loss_weight = scaler_.scale() / targets;
    micro.auxiliary_weight = scaler_.scale() / micro_steps;
    if (input.wishes.spoiled) micro.loss_weight = std::numeric_limits<double>::quiet_NaN();
  }
  StepResult result;
  const parallel::ChunkSums sums = model_->run(staged.micro_batches, [&] {
    if (options_.device.is_cpu() || !input.meanwhile) return;
    const double begin = monotonic_seconds();
    input.meanwhile();
    result.data_seconds = monotonic_seconds() - begin;
  });

  if (input.before_update) {
    const SpanScope span({.kind = SpanKind::kSnapshot, .name = "snapshot in flight"});
    input.before_update();
  }
  // One exchange tells everybody the norm, the loss and what anybody wishes. Where every rank holds the whole gradient
  // the optimizer need not wait for it.
  const bool replicated = model_->is_replicated();
  const auto squared_norm = [&] {
    const SpanScope span({.kind = SpanKind::kOptimizer, .name = "norm"});
    return model_->squared_norm();
  };
  comm::Communicator& world = model_->groups().world;
  fill_shared(input.wishes, replicated ? 0.0 : squared_norm(), sums);
  comm::Work sharing;
  if (world.size() > 1) {
    comm::OpOptions options;
    options.site = "world: norm and loss";
    sharing = world.all_reduce({shared_.data(), static_cast<std::int64_t>(shared_.size()), comm::DType::kF64},
                               comm::ReduceOp::kSum, options);
    if (!replicated || input.may_update || input.before_update) sharing.wait();
  }
  result.gradient_norm = std::sqrt(replicated ? squared_norm() : shared_[0]) / scaler_.scale();
  result.skipped = !std::isfinite(result.gradient_norm);
  result.withheld =
      !result.skipped && input.may_update && !input.may_update(shared_[1] / targets, result.gradient_norm);
  const bool updates = !result.skipped && !result.withheld;
  if (updates) {
    const SpanScope span({.kind = SpanKind::kOptimizer, .name = "update"});
    optimizer_->step(input.learning_rate, clip_factor(result.gradient_norm, job_.optimizer.clip_norm, scaler_.scale()));
  }
  scaler_.update(!result.skipped);
  completed_ = input.step + 1;  // what follows may fail, the state of this rank is complete
  if (updates) {
    const SpanScope span({.kind = SpanKind::kPublish});
    model_->publish();
  }
  sharing.wait();
  result.loss = shared_[1] / targets;
  result.auxiliary_loss = shared_[2] / micro_steps;
  result.learning_rate = input.learning_rate;
  result.wishes = wishes_of_all(input.wishes.spoiled);
  result.targets = staged.counted;
  if (spec_.arch == spec::Arch::kMoe) result.expert_imbalance = expert_imbalance();
  return result;
}

double ShardedExecutor::expert_imbalance() const {
  double worst = 0.0;
  for (nn::TrainableModel* chunk : model_->models()) {
    for (const auto& module : chunk->modules(/*include_self=*/false)) {
      const auto* const experts = dynamic_cast<const nn::MoeMlp*>(module.get());
      if (experts == nullptr) continue;
      const std::vector<std::int64_t>& tokens = experts->last_routing().per_expert;
      const std::int64_t all = std::accumulate(tokens.begin(), tokens.end(), std::int64_t{0});
      if (all == 0) continue;
      const double mean = static_cast<double>(all) / static_cast<double>(tokens.size());
      worst = std::max(worst, static_cast<double>(*std::ranges::max_element(tokens)) / mean);
    }
  }
  return worst;
}

Evaluated ShardedExecutor::evaluate(const data::Batch& batch, std::int64_t padding_id, bool with_output) {
  parallel::MicroBatch micro = micro_batch(batch, padding_id, false);
  copies_.join();
  micro = model_->rows_of(std::move(micro));
  const parallel::ChunkSums sums = model_->evaluate(micro);
  // Models without exchanges between ranks have no sample here; in others it is one that does not count.
  torch::Tensor output;
  if (with_output && micro.input.size(0) > 0) output = model_->predict(micro);
  if (!model_->has_loss()) return {};
  Evaluated evaluated{{sums.loss, sums.targets, sums.correct}, {}, {}};
  if (batch.samples > 0 && output.defined()) {
    evaluated.output = output;
    evaluated.target = micro.target;
  }
  return evaluated;
}

// Of the ranks that hold the same part of the model; tensor parallelism is for models without.
void ShardedExecutor::share_buffers() {
  comm::Communicator& everyone = model_->groups().everyone;
  if (!everyone.valid()) return;
  for (nn::TrainableModel* chunk : model_->models()) {
    for (torch::Tensor& buffer : chunk->buffers()) everyone.broadcast(nn::bytes_of(buffer), 0).wait();  // of any dtype
  }
}

namespace {

using parallel::FlatShard;

torch::Tensor weights_of(const FlatShard& shard) { return shard.weights(); }
torch::Tensor master_of(const FlatShard& shard) { return shard.has_master() ? shard.master() : torch::Tensor(); }
torch::Tensor own_master_of(const FlatShard& shard) { return shard.has_master() ? torch::Tensor() : shard.master(); }

using checkpoint::TensorKind;

void restore_buffers(torch::nn::Module& module, const checkpoint::TensorSource& tensors) {
  for (auto& buffer : module.named_buffers()) {
    const torch::Tensor saved = tensors.read_whole(TensorKind::kModel, buffer.key());
    if (!saved.defined() || saved.sizes() != buffer.value().sizes()) {
      throw bad_input("the checkpoint has no tensor " + buffer.key(),
                      "it is of another model; check `model` in the job");
    }
    buffer.value().copy_(saved);
  }
}

}  // namespace

void ShardedExecutor::save(checkpoint::CheckpointPart& part) {
  share_buffers();
  add_state(part, false);
}

// Buffers (running statistics) and what compression keeps are each rank's own.
void ShardedExecutor::add_replicas(checkpoint::CheckpointPart& part) const { add_tensors(part, true); }

void ShardedExecutor::add_tensors(checkpoint::CheckpointPart& part, bool everything) const {
  add_pieces(*model_, TensorKind::kModel, weights_of, "", part, everything);
  optimizer_->save(part, everything);
  add_pieces(*model_, TensorKind::kOptimizer, master_of, state_name::kMaster, part, everything);
}

void ShardedExecutor::add_state(checkpoint::CheckpointPart& part, bool everything) const {
  add_tensors(part, everything);
  const parallel::ProcessGroups& groups = model_->groups();
  if (everything || nn::Partition::rank(groups.everyone) == 0) {
    for (nn::TrainableModel* chunk : model_->models()) {
      for (const auto& buffer : chunk->named_buffers()) {
        part.pieces.push_back(checkpoint::whole_piece(TensorKind::kModel, buffer.key(), buffer.value()));
      }
    }
  }
  if (everything || groups.world.rank() == 0) {
    add_whole(scaler_.state(), TensorKind::kOptimizer, part);
  }
  add_whole(model_->compression_state(), TensorKind::kRank, part);
}

// Master weights of a narrower run lose nothing; frozen weights have none.
void ShardedExecutor::read_masters(const checkpoint::TensorSource& tensors) {
  const auto weights = range_reader(tensors, TensorKind::kModel, "");
  const auto masters = range_reader(tensors, TensorKind::kOptimizer, state_name::kMaster);
  model_->fill(own_master_of, [&](const std::string& name, std::int64_t first, const torch::Tensor& out) {
    const bool wider = tensors.find(TensorKind::kOptimizer, state_name::kMaster + name) != nullptr;
    (wider ? masters : weights)(name, first, out);
  });
  model_->fill(master_of, masters);
  for (nn::TrainableModel* chunk : model_->models()) restore_buffers(*chunk, tensors);
}

// Weights are what the model computed with: the fused step rounds its master weights in a way of its own.
void ShardedExecutor::read_weights(const checkpoint::TensorSource& tensors) {
  model_->fill(
      [&](const parallel::FlatShard& shard) {
        const auto* facts = tensors.find(TensorKind::kModel, shard.parameters().front().name);
        const bool same =
            shard.has_master() && facts != nullptr && facts->dtype == shard.narrow_weights().scalar_type();
        return same ? shard.narrow_weights() : torch::Tensor();
      },
      range_reader(tensors, TensorKind::kModel, ""));
}

void ShardedExecutor::read_updates(const checkpoint::TensorSource& tensors) {
  optimizer_->load(tensors);
  scaler_.load_state(read_like(scaler_.state(), tensors, TensorKind::kOptimizer));
}

void ShardedExecutor::read_state(const SavedState& saved) {
  const torch::NoGradGuard no_grad;
  read_masters(saved.tensors);
  read_weights(saved.tensors);
  read_updates(saved.tensors);
}

std::string ShardedExecutor::restore(const SavedState& saved, bool same_ranks) {
  const torch::NoGradGuard no_grad;
  read_masters(saved.tensors);
  model_->adopt_master();
  read_weights(saved.tensors);
  model_->publish();
  read_updates(saved.tensors);
  completed_ = saved.facts.step;
  staged_ = {};
  if (model_->compression_state().empty()) return {};
  if (!same_ranks) return "the number of ranks changed: error feedback of the gradient compression starts anew";
  model_->load_compression(saved.rank_tensors);
  return {};
}

void ShardedExecutor::export_weights(const std::string& folder, const std::string& tokenizer_folder) {
  export_pretrained(*model_, job_.model, folder, tokenizer_folder);
}

ExecutorFigures ShardedExecutor::figures() const {
  ExecutorFigures figures;
  for (const auto& [name, traffic] : model_->groups().traffic()) figures.communicated_bytes += traffic.total_bytes();
  figures.skipped_steps = scaler_.skipped_steps();
  figures.offloaded_bytes = model_->arena().bytes();
  figures.peak_memory_bytes = peak_memory_bytes(options_.device);
  return figures;
}

double peak_memory_bytes(torch::Device device) {
  if (!device.is_cpu()) return nn::compat::peak_allocated_bytes(device);
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmHWM:", 0) == 0) return std::stod(line.substr(6)) * 1024.0;
  }
  return 0.0;
}

}  // namespace lockstep::engine
