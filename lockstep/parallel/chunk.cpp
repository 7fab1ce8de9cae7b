#include "lockstep/parallel/chunk.h"

#include <torch/autograd.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/telemetry/span_log.h"

namespace lockstep::parallel {

using torch::Tensor;

namespace {

std::set<const void*> identities(const std::vector<Tensor>& tensors) {
  std::set<const void*> found;
  for (const Tensor& tensor : tensors) found.insert(tensor.unsafeGetTensorImpl());
  return found;
}

}  // namespace

std::set<const void*> tensors_of(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  std::set<const void*> tensors;
  for (const auto& module : modules) {
    if (module) tensors.merge(identities(module->parameters()));
  }
  return tensors;
}

Chunk::Chunk(std::shared_ptr<nn::TrainableModel> model, std::vector<std::shared_ptr<FlatShard>> shards,
             const ChunkOptions& options)
    : model_(std::move(model)),
      by_unit_(dynamic_cast<nn::UnitModel*>(model_.get())),
      shards_(std::move(shards)),
      options_(options) {
  units_.resize(by_unit_ != nullptr ? by_unit_->unit_count() : 1);
  find_uses();
  if (by_unit_ == nullptr) add_hooks();
}

// A shard serves every unit that uses one of its tensors.
void Chunk::find_uses() {
  std::vector<std::set<const void*>> tensors;  // by unit
  for (std::size_t i = 0; i < units_.size(); ++i) {
    tensors.push_back(identities(by_unit_ != nullptr ? by_unit_->unit_parameters(i) : model_->parameters()));
  }
  for (const auto& shard : shards_) add_uses(*shard, tensors);
}

void Chunk::add_uses(FlatShard& shard, const std::vector<std::set<const void*>>& tensors) {
  const std::size_t count = shard.parameters().size();
  std::vector<std::size_t> first(count, units_.size()), all(count);
  std::iota(all.begin(), all.end(), 0);
  std::size_t last = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const nn::DeclaredParameter& parameter = shard.parameters()[i];
    for (std::size_t unit = 0; unit < units_.size(); ++unit) {
      if (!tensors[unit].contains(parameter.tensor.unsafeGetTensorImpl())) continue;
      first[i] = std::min(first[i], unit);
      last = std::max(last, unit);
    }
    LOCKSTEP_ASSERT(first[i] < units_.size(), "no unit uses " + parameter.name);
  }
  const std::size_t earliest = *std::min_element(first.begin(), first.end());
  units_[earliest].first_use.push_back(&shard);
  units_[last].last_use.push_back(&shard);
  if (shard.buckets() == nullptr) {
    units_[earliest].completes.emplace_back(&shard, all);
    return;
  }
  for (std::size_t unit = 0; unit < units_.size(); ++unit) {
    std::vector<std::size_t> parameters;
    std::copy_if(all.begin(), all.end(), std::back_inserter(parameters), [&](auto i) { return first[i] == unit; });
    if (!parameters.empty()) units_[unit].completes.emplace_back(&shard, std::move(parameters));
  }
}

void Chunk::add_hooks() {
  for (const auto& shard : shards_) {
    if (shard->buckets() == nullptr) continue;
    // A kernel for every parameter is mostly launches: a device that waits for nobody collects all of them at the end.
    if (shard->buckets()->buckets().size() == 1 && !shard->gradient().is_cpu()) continue;
    std::vector<Tensor> tensors;
    for (const nn::DeclaredParameter& parameter : shard->parameters()) tensors.push_back(parameter.tensor);
    hooks_.push_back(std::make_unique<GradientHooks>(tensors, [this, shard = shard.get()](std::size_t i) {
      shard->gradients_done({&i, 1}, finished_ + 1 == options_.micro_steps);
    }));
  }
}

bool Chunk::recomputes(std::size_t unit) const {
  return by_unit_ != nullptr && by_unit_->recomputes(unit, options_.recompute);
}

// Weights for this unit, and the gather for the next one on its way. Backward passes the units the other way round,
// so there a shard's last use of forward is its first.
void Chunk::enter(std::size_t unit, int direction) {
  const auto needs = [&](std::size_t i) -> const std::vector<FlatShard*>& {
    return direction > 0 ? units_[i].first_use : units_[i].last_use;
  };
  for (FlatShard* shard : needs(unit)) shard->gather();
  const std::size_t next = unit + static_cast<std::size_t>(direction);  // wraps below zero, and is then too large
  if (next >= units_.size()) return;
  for (FlatShard* shard : needs(next)) shard->start_gather();
}

void Chunk::leave(std::size_t unit, int direction) {
  if (!options_.reshard_after_forward) return;
  for (FlatShard* shard : direction > 0 ? units_[unit].last_use : units_[unit].first_use) shard->release();
}

void Chunk::count_loss(const nn::LossResult& result) {
  if (result.loss_sum.is_cpu()) {
    sums_.loss += result.loss_sum.item<double>();
  } else {
    const Tensor loss = result.loss_sum.detach().to(torch::kFloat64);
    device_loss_ = device_loss_.defined() ? device_loss_ + loss : loss;
  }
  sums_.targets += result.count;
  sums_.correct += result.correct;
}

void Chunk::run(std::size_t unit, Kept& kept, const MicroBatch& batch, bool count) {
  if (by_unit_ == nullptr) {
    const nn::LossResult result = model_->loss(kept.input.front(), batch.target, batch.context);
    kept.loss = result.loss_sum;
    return count_loss(result);
  }
  nn::UnitOutput output = by_unit_->run_unit(unit, kept.input, {batch.input, batch.target, batch.context});
  kept.output = std::move(output.stream);
  kept.auxiliary = std::move(output.auxiliary);
  if (count && kept.auxiliary.defined()) sums_.auxiliary += kept.auxiliary.item<double>();
  if (!output.loss) return;
  kept.loss = output.loss->loss_sum;
  count_loss(*output.loss);
}

void Chunk::keep_away(Kept& kept) {
  if (options_.activation_arena == nullptr || !kept.recompute) return;
  for (Tensor& tensor : kept.input) tensor = options_.activation_arena->put(tensor);
  kept.offloaded = true;
}

bool Chunk::is_idle(const MicroBatch& batch) const {
  return (by_unit_ == nullptr || !by_unit_->has_exchanges()) && batch.input.size(0) == 0;
}

nn::Stream Chunk::first_stream(const MicroBatch& batch, const Tensor& x) const {
  if (x.defined()) return {x};
  if (by_unit_ == nullptr) return {batch.input};
  return by_unit_->first_stream({batch.input, batch.target, batch.context});
}

void Chunk::Kept::need_gradients() {
  if (from_data) return;
  for (Tensor& tensor : input) {
    if (tensor.is_floating_point()) tensor.requires_grad_(true);
  }
}

Tensor Chunk::forward(int number, const MicroBatch& batch, const Tensor& x) {
  Held& held = held_[number];
  held.batch = batch;
  nn::Stream current = first_stream(batch, x);
  for (std::size_t i = 0; i < units_.size(); ++i) {
    enter(i, +1);
    Kept kept;
    kept.recompute = recomputes(i) && !is_idle(batch);
    kept.from_data = i == 0 && !x.defined();
    for (const Tensor& tensor : current) kept.input.push_back(tensor.detach());
    kept.need_gradients();
    if (!is_idle(batch)) {
      const torch::AutoGradMode mode(!kept.recompute);
      run(i, kept, batch, true);
    }
    leave(i, +1);
    current = kept.output;
    if (kept.recompute) {
      kept.output.clear();
      kept.loss.reset();
      kept.auxiliary.reset();
      keep_away(kept);
    }
    held.units.push_back(std::move(kept));
  }
  return current.empty() ? Tensor() : current.front().detach();
}

Tensor Chunk::pass(const MicroBatch& batch, const Tensor& x, bool logits) {
  const torch::NoGradGuard no_grad;
  nn::Stream current = first_stream(batch, x);
  const bool ends = logits && by_unit_ != nullptr && by_unit_->ends_in_loss();
  for (std::size_t i = 0; i < units_.size(); ++i) {
    enter(i, +1);
    Kept kept;
    kept.input = current;
    if (logits && by_unit_ == nullptr) {
      kept.output = {model_->forward(current.front(), batch.context)};
    } else if (ends && i + 1 == units_.size()) {
      kept.output = {by_unit_->predict_unit(i, current, {batch.input, batch.target, batch.context})};
    } else if (!is_idle(batch)) {
      run(i, kept, batch, false);
    }
    leave(i, +1);
    current = std::move(kept.output);
  }
  return current.empty() ? Tensor() : current.front();
}

Tensor Chunk::evaluate(const MicroBatch& batch, const Tensor& x) { return pass(batch, x, false); }
Tensor Chunk::predict(const MicroBatch& batch, const Tensor& x) { return pass(batch, x, true); }

nn::Stream Chunk::differentiate(const Kept& kept, const nn::Stream& gradients, const MicroBatch& batch) const {
  torch::autograd::variable_list outputs, given;
  const auto add = [&](const Tensor& output, const Tensor& gradient) {
    // Under adapters the embedding is frozen and has no input to pass a gradient on to.
    if (!output.defined() || !gradient.defined() || !output.requires_grad()) return;
    outputs.push_back(output);
    given.push_back(gradient.to(output.scalar_type()));
  };
  if (kept.loss.defined()) {
    add(kept.loss, torch::full_like(kept.loss, batch.loss_weight));
  } else {
    for (std::size_t i = 0; i < kept.output.size() && i < gradients.size(); ++i) add(kept.output[i], gradients[i]);
  }
  if (kept.auxiliary.defined()) add(kept.auxiliary, torch::full_like(kept.auxiliary, batch.auxiliary_weight));
  if (!outputs.empty()) torch::autograd::backward(outputs, given);
  nn::Stream own;
  for (const Tensor& input : kept.input) own.push_back(input.grad());
  return own;
}

Tensor Chunk::backward(int number, const Tensor& gradient, bool defer) {
  const auto found = held_.find(number);
  LOCKSTEP_ASSERT(found != held_.end(), "backward without its forward");
  Held& held = found->second;
  if (defer) held.deferred.resize(units_.size());
  nn::Stream current = {gradient};
  for (std::size_t i = units_.size(); i-- > 0;) {
    enter(i, -1);
    Kept kept = std::move(held.units[i]);
    if (kept.recompute) {
      for (Tensor& input : kept.input) {
        input = (kept.offloaded ? options_.activation_arena->take(input) : input).detach();
      }
      kept.need_gradients();
      const torch::AutoGradMode mode(true);
      const telemetry::SpanScope span(
          {.kind = telemetry::SpanKind::kRecompute, .micro = static_cast<std::int16_t>(number)});
      run(i, kept, held.batch, false);
    }
    {
      if (defer) held.deferred[i] = std::make_unique<nn::WeightGradientQueue>();
      const nn::DeferWeightGradients deferring(defer ? held.deferred[i].get() : nullptr);
      current = differentiate(kept, current, held.batch);
    }
    kept = {};
    if (!defer) gradients_done(i, finished_ + 1 == options_.micro_steps);
    leave(i, -1);
  }
  if (!defer) {
    held_.erase(found);
    ++finished_;
  }
  return current.empty() ? Tensor() : current.front();
}

void Chunk::weight_gradients(int number) {
  const auto found = held_.find(number);
  LOCKSTEP_ASSERT(found != held_.end(), "weight gradients without their backward");
  for (std::size_t i = units_.size(); i-- > 0;) {
    found->second.deferred[i]->run();
    gradients_done(i, finished_ + 1 == options_.micro_steps);
  }
  held_.erase(found);
  ++finished_;
}

// A gradient is complete when backward has passed the first unit that uses its parameter.
void Chunk::gradients_done(std::size_t unit, bool last_of_step) {
  for (const auto& [shard, parameters] : units_[unit].completes) {
    const bool scatters = shard->options().zero >= 2;
    const bool reduce = last_of_step || (options_.reduce_each_micro_step && scatters);
    shard->gradients_done(parameters, reduce);
    if (!reduce) continue;
    // Whole gradients are what stages 2 and 3 save: of at most two blocks at a time.
    if (scatters && reducing_ != nullptr) reducing_->continue_reduction();
    reducing_ = scatters ? shard : nullptr;
  }
}

void Chunk::end_step() {
  finished_ = 0;
  reducing_ = nullptr;
  held_.clear();
  for (const auto& shard : shards_) shard->release();
}

ChunkSums Chunk::take_sums() {
  if (device_loss_.defined()) sums_.loss += device_loss_.item<double>();
  device_loss_.reset();
  return std::exchange(sums_, {});
}

}  // namespace lockstep::parallel
