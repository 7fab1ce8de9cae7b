#include "lockstep/nn/plugin_model.h"

#include <ATen/CPUGeneratorImpl.h>
#include <fmt/format.h>

#include <mutex>
#include <set>
#include <unordered_map>

#include "lockstep/base/error.h"
#include "lockstep/nn/functional.h"
#include "lockstep/nn/random.h"
#include "lockstep/nn/script_loss.h"
#include "lockstep/nn/torch_compat.h"

namespace lockstep::nn {

using torch::Tensor;

namespace {

// The model as its constructor makes it from torch's generator, seeded; the generator is as before afterwards.
std::unique_ptr<plugin::Model> construct(const spec::Script& script, std::uint64_t seed) {
  static std::mutex one_at_a_time;  // ranks may be threads, and the generator is the process's
  const std::lock_guard lock(one_at_a_time);
  at::Generator generator = at::globalContext().defaultGenerator(torch::kCPU);
  const Tensor before = generator.get_state();
  generator.set_current_seed(seed);
  struct Restore {
    at::Generator& generator;
    const Tensor& state;
    ~Restore() { generator.set_state(state); }
  } const restore{generator, before};
  return plugin::make_model(script.plugin, "model");
}

// visit(full name, tensor, whether it is a parameter) for every tensor of a unit.
template <class Visit>
void each_tensor(const std::string& unit, plugin::Unit& module, Visit visit) {
  for (const auto& item : module.named_parameters()) visit(unit + "." + item.key(), item.value(), true);
  for (const auto& item : module.named_buffers()) visit(unit + "." + item.key(), item.value(), false);
}

std::map<std::string, Tensor> parameters_again(const spec::Script& script, std::uint64_t seed) {
  std::map<std::string, Tensor> values;
  const auto model = construct(script, seed);
  for (const auto& [name, unit] : model->units()) {
    each_tensor(name, *unit, [&](const std::string& full, const Tensor& tensor, bool parameter) {
      if (parameter) values.emplace(full, tensor.detach());
    });
  }
  return values;
}

}  // namespace

PluginModel::PluginModel(const spec::Model& spec, const BuildOptions& options)
    : ForeignModel(spec, options,
                   [script = spec.script, seed = options.seed] { return parameters_again(script, seed); }),
      title_(plugin::title_of(spec.script.plugin, spec::PluginKind::kModel)),
      model_(construct(spec.script, options.seed)) {
  if (model_->units().empty()) {
    throw UserError(ExitCode::kRunFailed, title_ + ": has no units", "call add_unit() in the constructor");
  }
  take_tensors();
  convert_tensors();
  if (part_.end_layer < 0) part_.end_layer = static_cast<std::int64_t>(model_->units().size());
  keep_part(options.device.is_meta() ? torch::Device(torch::kCPU) : options.device);
  register_tensors();
  if (spec.script.own_loss.used()) own_loss_ = std::make_unique<PluginLoss>(spec.script.own_loss);
}

// A tensor that several units use is saved under the first name.
void PluginModel::take_tensors() {
  std::unordered_map<const void*, std::string> seen;
  std::set<std::string> units;
  for (const auto& [name, module] : model_->units()) {
    if (name.empty() || module == nullptr || !units.insert(name).second) {
      throw UserError(ExitCode::kRunFailed, fmt::format("{}: two units are called `{}`, or one is empty", title_, name),
                      "give every unit a name of its own");
    }
    std::vector<std::string>& used = names_.emplace_back();
    each_tensor(name, *module, [&](const std::string& full, const Tensor& tensor, bool parameter) {
      const auto [found, fresh] = seen.try_emplace(tensor.unsafeGetTensorImpl(), full);
      used.push_back(found->second);
      if (fresh) {
        (parameter ? parameters_ : buffers_)[full] = tensor;
      } else if (found->second != full) {
        aliases_[full] = found->second;
      }
    });
  }
}

void PluginModel::keep_part(torch::Device device) {
  std::set<std::string> anywhere, here;
  const auto& all = model_->units();
  for (std::size_t i = 0; i < all.size(); ++i) {
    anywhere.insert(names_[i].begin(), names_[i].end());
    const auto index = static_cast<std::int64_t>(i);
    if (index < part_.first_layer || index >= part_.end_layer) continue;
    here.insert(names_[i].begin(), names_[i].end());
    Unit unit{.name = all[i].first, .module = all[i].second, .parameters = {}};
    std::set<std::string> once;
    for (const std::string& name : names_[i]) {
      const auto found = parameters_.find(name);
      if (found != parameters_.end() && once.insert(name).second) unit.parameters.push_back(found->second);
    }
    units_.push_back(std::move(unit));
  }
  keep_tensors(anywhere, here, units_.size() == all.size());
  const torch::NoGradGuard no_grad;
  for (auto* tensors : {&parameters_, &buffers_}) {
    for (auto& [name, tensor] : *tensors) {
      if (!device.is_cpu()) tensor.set_data(tensor.to(device));
    }
  }
}

bool PluginModel::counts_targets() const {
  if (own_loss_) return own_loss_->counts_targets();
  const bool of_the_model = spec().script.loss == spec::ScriptLoss::kOwn;
  return of_the_model ? model_->counted() == plugin::Counted::kTargets : ForeignModel::counts_targets();
}

plugin::Batch PluginModel::batch_of(const UnitBatch& batch) const {
  const ForwardContext& context = batch.context;
  plugin::Batch given;
  given.inputs = inputs_of(batch);
  given.target = batch.target;
  given.training = context.training;
  given.seed = context.seed;
  given.step = context.step;
  given.first_index = context.first_index;
  given.dropout = [&context](const Tensor& x, double probability, std::uint32_t site) {
    if (!context.training || probability == 0.0) return x;
    return dropout(x, probability, {context.seed, context.step, context.first_index, site});
  };
  return given;
}

Stream PluginModel::call(std::size_t unit, const Stream& x, const plugin::Batch& batch) {
  Unit& own = units_[unit];
  if (own.module->is_training() != batch.training) own.module->train(batch.training);
  const compat::AutocastScope autocast(autocast_, x.front().device());
  Stream result = plugin::calling(title_, fmt::format("forward of unit `{}`", own.name),
                                  [&] { return own.module->forward(x, batch); });
  for (const Tensor& tensor : result) {
    if (tensor.defined()) continue;
    throw UserError(ExitCode::kRunFailed, fmt::format("{}: unit `{}` returns an undefined tensor", title_, own.name),
                    "return what the next unit reads");
  }
  if (!result.empty()) return result;
  throw UserError(ExitCode::kRunFailed, fmt::format("{}: unit `{}` returns nothing", title_, own.name),
                  "return what the next unit reads, or what the loss compares");
}

LossResult PluginModel::loss_of(const Stream& output, const plugin::Batch& batch) const {
  if (own_loss_) return own_loss_->compute(output.front(), batch.target, batch.training);
  const spec::ScriptLoss named = spec().script.loss;
  if (named != spec::ScriptLoss::kOwn) return script_loss(named, output.front(), batch.target, !batch.training, name_);
  const plugin::Loss loss = plugin::calling(title_, "loss", [&] { return model_->loss(output, batch); });
  return checked_loss(loss, model_->counted(), batch.target, title_, "loss");
}

UnitOutput PluginModel::run_unit(std::size_t unit, const Stream& x, const UnitBatch& batch) {
  const plugin::Batch given = batch_of(batch);
  UnitOutput output;
  output.stream = call(unit, x, given);
  if (!is_last(unit)) return output;
  output.loss = loss_of(output.stream, given);
  output.stream.clear();
  return output;
}

Tensor PluginModel::predict_unit(std::size_t unit, const Stream& x, const UnitBatch& batch) {
  return call(unit, x, batch_of(batch)).front();
}

}  // namespace lockstep::nn
