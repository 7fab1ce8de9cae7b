#include "lockstep/parallel/chunk.h"

#include <torch/autograd.h>

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/telemetry/span_log.h"

namespace lockstep::parallel {

using torch::Tensor;

std::set<const void*> tensors_of(const std::vector<std::shared_ptr<torch::nn::Module>>& modules) {
  std::set<const void*> tensors;
  for (const auto& module : modules) {
    if (!module) continue;
    for (const Tensor& tensor : module->parameters()) tensors.insert(tensor.unsafeGetTensorImpl());
  }
  return tensors;
}

Chunk::Chunk(std::shared_ptr<nn::TrainableModel> model, std::vector<std::shared_ptr<FlatShard>> shards,
             const ChunkOptions& options)
    : model_(std::move(model)),
      language_(dynamic_cast<nn::LanguageModel*>(model_.get())),
      shards_(std::move(shards)),
      options_(options) {
  find_units();
  find_uses();
  if (language_ == nullptr) add_hooks();
}

void Chunk::find_units() {
  if (language_ == nullptr) {
    units_.push_back({.kind = Kind::kWhole});
    return;
  }
  const nn::ModelPart& part = language_->part();
  if (part.embedding) units_.push_back({.kind = Kind::kEmbedding});
  for (std::int64_t layer = part.first_layer; layer < part.end_layer; ++layer) {
    for (int i = 0; i < language_->parts_per_layer(); ++i) {
      units_.push_back({.kind = Kind::kLayer, .layer = layer, .part = i});
    }
  }
  if (part.head) units_.push_back({.kind = Kind::kHead});
}

// Which shards a unit needs follows from the modules it uses: a shard serves every unit that uses one of its tensors.
void Chunk::find_uses() {
  std::vector<std::set<const void*>> tensors;  // by unit
  for (const Unit& unit : units_) {
    std::vector<std::shared_ptr<torch::nn::Module>> modules;
    if (unit.kind == Kind::kWhole) modules = {model_};
    if (unit.kind == Kind::kEmbedding) modules = language_->embedding_modules();
    if (unit.kind == Kind::kLayer) modules = {language_->layer_module(unit.layer)};
    if (unit.kind == Kind::kHead) modules = language_->head_modules();
    tensors.push_back(tensors_of(modules));
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

bool Chunk::recomputes(const Unit& unit) const {
  if (unit.kind != Kind::kLayer) return false;
  if (options_.recompute == plan::Recompute::kFull) return true;
  return options_.recompute == plan::Recompute::kSelective && language_->parts_per_layer() > 1 && unit.part == 0;
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

void Chunk::run(const Unit& unit, Kept& kept, const MicroBatch& batch, bool count) {
  switch (unit.kind) {
    case Kind::kEmbedding:
      language_->check_tokens(kept.input);
      kept.hidden = language_->embed(kept.input, batch.context);
      return;
    case Kind::kLayer: {
      const nn::LayerOutput output = language_->run_layer(unit.layer, unit.part, kept.input, batch.context);
      kept.hidden = output.hidden;
      kept.auxiliary = output.auxiliary;
      if (count && kept.auxiliary.defined()) sums_.auxiliary += kept.auxiliary.item<double>();
      return;
    }
    case Kind::kHead:
    case Kind::kWhole: {
      const nn::LossResult result = unit.kind == Kind::kHead
                                        ? language_->head_loss(kept.input, batch.input, batch.target, batch.context)
                                        : model_->loss(kept.input, batch.target, batch.context);
      kept.loss = result.loss_sum;
      if (result.loss_sum.is_cpu()) {
        sums_.loss += result.loss_sum.item<double>();
      } else {
        const Tensor loss = result.loss_sum.detach().to(torch::kFloat64);
        device_loss_ = device_loss_.defined() ? device_loss_ + loss : loss;
      }
      sums_.targets += result.count;
      sums_.correct += result.correct;
      return;
    }
  }
}

void Chunk::keep_away(Kept& kept) {
  if (options_.activation_arena == nullptr || !kept.recompute) return;
  kept.input = options_.activation_arena->put(kept.input);
  kept.offloaded = true;
}

bool Chunk::is_idle(const Unit& unit, const MicroBatch& batch) const {
  return unit.kind == Kind::kWhole && batch.input.size(0) == 0;
}

Tensor Chunk::forward(int number, const MicroBatch& batch, const Tensor& x) {
  Held& held = held_[number];
  held.batch = batch;
  Tensor current = x.defined() ? x : batch.input;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    enter(i, +1);
    Kept kept;
    kept.recompute = recomputes(units_[i]);
    kept.input = current.detach();
    if (kept.input.is_floating_point() && language_ != nullptr) kept.input.requires_grad_(true);
    if (!is_idle(units_[i], batch)) {
      const torch::AutoGradMode mode(!kept.recompute);
      run(units_[i], kept, batch, true);
    }
    leave(i, +1);
    current = kept.hidden;
    if (kept.recompute) {
      kept.hidden.reset();
      kept.auxiliary.reset();
      keep_away(kept);
    }
    held.units.push_back(std::move(kept));
  }
  return current.defined() ? current.detach() : current;
}

Tensor Chunk::pass(const MicroBatch& batch, const Tensor& x, bool logits) {
  const torch::NoGradGuard no_grad;
  Tensor current = x.defined() ? x : batch.input;
  for (std::size_t i = 0; i < units_.size(); ++i) {
    enter(i, +1);
    Kept kept;
    kept.input = current;
    if (logits && units_[i].kind == Kind::kHead) {
      kept.hidden = language_->head_logits(current, batch.input, batch.context);
    } else if (logits && units_[i].kind == Kind::kWhole) {
      kept.hidden = model_->forward(current, batch.context);
    } else if (!is_idle(units_[i], batch)) {
      run(units_[i], kept, batch, false);
    }
    leave(i, +1);
    current = kept.hidden;
  }
  return current;
}

Tensor Chunk::evaluate(const MicroBatch& batch, const Tensor& x) { return pass(batch, x, false); }
Tensor Chunk::predict(const MicroBatch& batch, const Tensor& x) { return pass(batch, x, true); }

Tensor Chunk::backward(int number, const Tensor& gradient, bool defer) {
  const auto found = held_.find(number);
  LOCKSTEP_ASSERT(found != held_.end(), "backward without its forward");
  Held& held = found->second;
  if (defer) held.deferred.resize(units_.size());
  Tensor current = gradient;
  for (std::size_t i = units_.size(); i-- > 0;) {
    enter(i, -1);
    Kept kept = std::move(held.units[i]);
    if (kept.recompute) {
      Tensor input = kept.offloaded ? options_.activation_arena->take(kept.input) : kept.input;
      kept.input = input.detach().requires_grad_(true);
      const torch::AutoGradMode mode(true);
      const telemetry::SpanScope span(
          {.kind = telemetry::SpanKind::kRecompute, .micro = static_cast<std::int16_t>(number)});
      run(units_[i], kept, held.batch, false);
    }
    torch::autograd::variable_list outputs, gradients;
    if (kept.loss.defined()) {
      outputs.push_back(kept.loss);
      gradients.push_back(torch::full_like(kept.loss, held.batch.loss_weight));
    } else if (kept.hidden.defined()) {
      outputs.push_back(kept.hidden);
      gradients.push_back(current);
    }
    if (kept.auxiliary.defined() && kept.auxiliary.requires_grad()) {
      outputs.push_back(kept.auxiliary);
      gradients.push_back(torch::full_like(kept.auxiliary, held.batch.auxiliary_weight));
    }
    {
      if (defer) held.deferred[i] = std::make_unique<nn::WeightGradientQueue>();
      const nn::DeferWeightGradients deferring(defer ? held.deferred[i].get() : nullptr);
      // Under adapters the embedding is frozen and has no input to pass a gradient on to.
      if (!outputs.empty() && outputs.front().requires_grad()) torch::autograd::backward(outputs, gradients);
    }
    current = kept.input.grad();
    kept = {};
    if (!defer) gradients_done(i, finished_ + 1 == options_.micro_steps);
    leave(i, -1);
  }
  if (!defer) {
    held_.erase(found);
    ++finished_;
  }
  return current;
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
