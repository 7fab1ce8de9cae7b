#include "lockstep/engine/sharded_optimizer.h"

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/whole_tensors.h"
#include "lockstep/kernels/fused_optimizer.h"

namespace lockstep::engine {
namespace {

using namespace state_name;

std::vector<std::string> slot_prefixes(const spec::Optimizer& options) {
  if (options.kind == spec::OptimizerKind::kAdamW) return {kFirstMoment, kSecondMoment};
  if (options.momentum != 0.0) return {kMomentum};
  return {};
}

}  // namespace

void check_optimizer(const spec::Optimizer& options) {
  const auto outside = [](double value) { return !(value >= 0.0 && value < 1.0); };
  if (outside(options.beta1)) throw bad_input("optimizer.beta1 is outside [0, 1)", "0.9 is usual");
  if (outside(options.beta2)) throw bad_input("optimizer.beta2 is outside [0, 1)", "0.95 to 0.999 is usual");
  if (outside(options.momentum)) throw bad_input("optimizer.momentum is outside [0, 1)", "0.9 is usual");
  if (!(options.epsilon > 0.0)) throw bad_input("optimizer.epsilon is not above 0", "1e-8 is usual");
  if (!(options.weight_decay >= 0.0)) throw bad_input("optimizer.weight_decay is negative", "use 0 for none");
  if (options.kind == spec::OptimizerKind::kSgd && options.nesterov && options.momentum == 0.0) {
    throw bad_input("optimizer.nesterov needs momentum", "set momentum: 0.9, or nesterov: false");
  }
}

double clip_factor(double norm, double clip_norm, double loss_scale) {
  constexpr double kEpsilon = 1e-6;
  const double clip = clip_norm > 0.0 ? std::min(1.0, clip_norm / (norm + kEpsilon)) : 1.0;
  return clip / loss_scale;
}

ShardedOptimizer::ShardedOptimizer(const spec::Optimizer& options, parallel::ParallelModel& model)
    : options_(options), model_(model), names_(slot_prefixes(options)) {
  check_optimizer(options);
  for (const auto& shard : model.shards()) {
    if (!shard->options().trainable) continue;
    const auto dtype = shard->master().scalar_type();
    for (std::size_t i = 0; i < names_.size(); ++i) {
      const bool away = shard->options().offload != plan::Offload::kNone;
      slots_[shard.get()].push_back(away ? model.arena().zeros(shard->shard_length(), dtype)
                                         : torch::zeros({shard->shard_length()}, shard->master().options()));
    }
  }
}

namespace {

// Into the slots that were brought to another device.
void put_back(const std::vector<torch::Tensor>& slots, const kernels::OptimizerArrays& arrays) {
  const torch::NoGradGuard no_grad;
  if (!slots.empty() && !slots[0].is_same(arrays.first)) slots[0].copy_(arrays.first);
  if (slots.size() > 1 && !slots[1].is_same(arrays.second)) slots[1].copy_(arrays.second);
}

}  // namespace

torch::Tensor ShardedOptimizer::slot(const parallel::FlatShard& shard, std::size_t index) const {
  const auto found = slots_.find(&shard);
  return found == slots_.end() ? torch::Tensor() : found->second.at(index);
}

void ShardedOptimizer::step(double learning_rate, double gradient_factor) {
  ++steps_;
  for (const auto& shard : model_.shards()) {
    if (!shard->options().trainable) continue;
    const std::vector<torch::Tensor>& slots = slots_[shard.get()];
    // On a GPU offloaded state lies in host memory: the update happens where the master weights are.
    const torch::Device where = shard->master().device();
    torch::Tensor narrow = shard->narrow_weights();
    const bool narrow_elsewhere = narrow.defined() && narrow.device() != where;
    kernels::OptimizerArrays arrays{shard->master(), shard->gradient().to(where), {}, {}, {}};
    if (!narrow_elsewhere) arrays.copy = narrow;
    if (!slots.empty()) arrays.first = slots[0].to(where);
    if (slots.size() > 1) arrays.second = slots[1].to(where);
    std::vector<kernels::ElementRange> decay;
    if (options_.weight_decay != 0.0) decay = shard->decay_ranges(options_.decay);
    if (options_.kind == spec::OptimizerKind::kAdamW) {
      kernels::adamw(arrays, decay,
                     {learning_rate, options_.beta1, options_.beta2, options_.epsilon, options_.weight_decay, steps_,
                      gradient_factor});
    } else {
      kernels::sgd(arrays, decay,
                   {learning_rate, options_.momentum, options_.weight_decay, options_.nesterov, gradient_factor});
    }
    if (narrow_elsewhere) narrow.copy_(arrays.parameter);
    if (shard->options().offload == plan::Offload::kNone) continue;
    put_back(slots, arrays);
    for (const torch::Tensor& slot : slots) model_.arena().rest(slot);
    shard->rest(model_.arena());
  }
}

parallel::TensorMap ShardedOptimizer::assemble() const {
  parallel::TensorMap state;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    state.merge(model_.assemble([&](const parallel::FlatShard& shard) { return slot(shard, i); }, names_[i]));
  }
  if (model_.groups().world.rank() == 0) {
    state[kSteps] = torch::tensor(steps_, torch::TensorOptions().dtype(torch::kInt64));
  }
  return state;
}

void ShardedOptimizer::save(checkpoint::CheckpointPart& part, bool everything) const {
  using checkpoint::TensorKind;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    const auto own = [&](const parallel::FlatShard& shard) { return slot(shard, i); };
    add_pieces(model_, TensorKind::kOptimizer, own, names_[i], part, everything);
  }
  if (!everything && model_.groups().world.rank() != 0) return;
  const torch::Tensor steps = torch::tensor(steps_, torch::TensorOptions().dtype(torch::kInt64));
  part.pieces.push_back(checkpoint::whole_piece(TensorKind::kOptimizer, kSteps, steps));
}

std::int64_t saved_updates(const checkpoint::TensorSource& source) {
  const torch::Tensor steps = source.read_whole(checkpoint::TensorKind::kOptimizer, kSteps);
  if (!steps.defined() || steps.numel() != 1 || steps.scalar_type() != torch::kInt64 ||
      steps.item<std::int64_t>() < 0) {
    throw bad_input(std::string("tensor ") + kSteps + " is missing or malformed", "use a checkpoint of the same job");
  }
  return steps.item<std::int64_t>();
}

void ShardedOptimizer::load(const checkpoint::TensorSource& source) {
  const std::int64_t steps = saved_updates(source);
  for (std::size_t i = 0; i < names_.size(); ++i) {
    model_.fill([&](const parallel::FlatShard& shard) { return slot(shard, i); },
                range_reader(source, checkpoint::TensorKind::kOptimizer, names_[i]));
  }
  steps_ = steps;
}

}  // namespace lockstep::engine
