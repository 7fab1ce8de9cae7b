#include "lockstep/nn/script_model.h"

#include <fmt/format.h>

#include <torch/csrc/jit/runtime/graph_executor.h>

#include <algorithm>
#include <tuple>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/nn/script_loss.h"
#include "lockstep/nn/script_operators.h"
#include "lockstep/nn/torch_compat.h"

namespace lockstep::nn {

using torch::Tensor;
namespace jit = torch::jit;

namespace {

constexpr const char* kSaveFix = "save it with torch.jit.script(model).save(FILE)";
constexpr std::size_t kShownBytes = 300;  // of libtorch's message

// What libtorch says, without the trace: the last line of a TorchScript trace names the problem.
std::string reason_of(const std::exception& error) {
  std::string text = error.what();
  if (const std::size_t at = text.rfind("RuntimeError: "); at != std::string::npos) text = text.substr(at + 14);
  text = trim(text);
  return printable(text.substr(0, text.find('\n')), kShownBytes);
}

jit::Module load_module(const spec::Script& script, torch::Device device) {
  const std::string digest = spec::script_digest(script.path);
  if (!script.digest.empty() && digest != script.digest) {
    throw bad_input(fmt::format("{} has changed: {} now, {} when the job was read", printable_path(script.path), digest,
                                script.digest),
                    "start the run again");
  }
  register_missing_operators();
  try {
    return jit::load(script.path, device.is_meta() ? torch::Device(torch::kCPU) : device);
  } catch (const std::exception& error) {
    throw bad_input(fmt::format("{} is no TorchScript module that this libtorch ({}) reads: {}",
                                printable_path(script.path), TORCH_VERSION, reason_of(error)),
                    kSaveFix);
  }
}

// Attributes of a module and of all below it: visit(module, index of the slot, full name).
void each_slot(const jit::Module& module, const std::string& prefix,
               const std::function<void(const jit::Module&, std::size_t, const std::string&)>& visit) {
  const auto type = module.type();
  for (std::size_t i = 0; i < type->numAttributes(); ++i) {
    const std::string name = prefix + type->getAttributeName(i);
    const c10::IValue value = module._ivalue()->getSlot(i);
    if (type->getAttribute(i)->is_module()) {
      if (value.isObject()) each_slot(value.toModule(), name + ".", visit);
    } else {
      visit(module, i, name);
    }
  }
}

void set_training(const jit::Module& module, bool training) {
  each_slot(module, "", [&](const jit::Module& owner, std::size_t slot, const std::string&) {
    if (owner.type()->getAttributeName(slot) == "training") owner._ivalue()->setSlot(slot, training);
  });
}

// The parameters in the file, once more.
std::map<std::string, Tensor> read_parameters(const spec::Script& script) {
  std::map<std::string, Tensor> values;
  each_slot(load_module(script, torch::kCPU), "",
            [&](const jit::Module& owner, std::size_t slot, const std::string& full) {
              if (owner.type()->is_parameter(slot)) values[full] = owner._ivalue()->getSlot(slot).toTensor();
            });
  return values;
}

}  // namespace

struct ScriptModel::Unit {
  const ScriptSegment* segment = nullptr;
  jit::GraphExecutor executor;
  std::vector<Tensor> parameters;
};

ScriptModel::ScriptModel(const spec::Model& spec, const BuildOptions& options)
    : ForeignModel(spec, options, [script = spec.script] { return read_parameters(script); }),
      module_(load_module(spec.script, options.device)) {
  share_tensors();
  convert_tensors();
  graph_ = cut_module(module_, name_);
  if (part_.end_layer < 0) part_.end_layer = static_cast<std::int64_t>(graph_.segments.size());
  keep_part();
  register_tensors();
  if (spec.script.own_loss.used()) own_loss_ = std::make_unique<PluginLoss>(spec.script.own_loss);
}

ScriptModel::~ScriptModel() = default;

bool ScriptModel::counts_targets() const {
  return own_loss_ ? own_loss_->counts_targets() : ForeignModel::counts_targets();
}

// One tensor for every place in memory: tied weights, and the lists of weights that recurrent layers keep beside their
// parameters, are separate tensors over the same memory after loading.
void ScriptModel::share_tensors() {
  using Key = std::tuple<const void*, std::vector<std::int64_t>>;
  std::map<Key, std::pair<std::string, Tensor>> seen;
  const auto key_of = [](const Tensor& tensor) { return Key{tensor.data_ptr(), tensor.sizes().vec()}; };
  each_slot(module_, "", [&](const jit::Module& owner, std::size_t slot, const std::string& name) {
    const c10::IValue value = owner._ivalue()->getSlot(slot);
    const bool parameter = owner.type()->is_parameter(slot), buffer = owner.type()->is_buffer(slot);
    if (!(parameter || buffer) || !value.isTensor() || !value.toTensor().defined()) return;
    const Tensor& tensor = value.toTensor();
    const auto [found, fresh] = seen.try_emplace(key_of(tensor), name, tensor);
    if (!fresh && tensor.numel() > 0) {
      aliases_[name] = found->second.first;
      owner._ivalue()->setSlot(slot, found->second.second);
      return;
    }
    (parameter ? parameters_ : buffers_)[name] = tensor;
  });
  each_slot(module_, "", [&](const jit::Module& owner, std::size_t slot, const std::string&) {
    const c10::IValue value = owner._ivalue()->getSlot(slot);
    if (value.isTensorList()) {
      c10::List<Tensor> list = value.toTensorList();
      for (std::size_t i = 0; i < list.size(); ++i) {
        const Tensor tensor = list.get(i);
        if (!tensor.defined() || tensor.numel() == 0) continue;
        const auto found = seen.find(key_of(tensor));
        if (found != seen.end()) list.set(i, found->second.second);
      }
    }
  });
}

// The units of this part, and the tensors that they use; the rest is given up.
void ScriptModel::keep_part() {
  const auto real_name = [&](const std::string& name) {
    const auto found = aliases_.find(name);
    return found == aliases_.end() ? name : found->second;
  };
  std::set<std::string> anywhere, here;
  for (std::size_t i = 0; i < graph_.segments.size(); ++i) {
    for (const std::string& name : graph_.segments[i].parameters) anywhere.insert(real_name(name));
  }
  for (std::int64_t i = part_.first_layer; i < part_.end_layer; ++i) {
    const ScriptSegment& segment = graph_.segments.at(static_cast<std::size_t>(i));
    auto unit = std::make_unique<Unit>();
    unit->segment = &segment;
    unit->executor = jit::GraphExecutor(segment.graph, segment.name);
    std::set<std::string> names;
    for (const std::string& name : segment.parameters) names.insert(real_name(name));
    for (const std::string& name : names) {
      here.insert(name);
      if (const auto found = parameters_.find(name); found != parameters_.end()) {
        unit->parameters.push_back(found->second);
      }
    }
    units_.push_back(std::move(unit));
  }
  const bool whole = units_.size() == graph_.segments.size();
  for (const Tensor& unused : keep_tensors(anywhere, here, whole)) units_.back()->parameters.push_back(unused);
}

std::vector<Tensor> ScriptModel::unit_parameters(std::size_t unit) const { return units_[unit]->parameters; }

Stream ScriptModel::first_stream(const UnitBatch& batch) const {
  Stream stream = inputs_of(batch);
  if (spec().script.loss == spec::ScriptLoss::kReturned && stream.size() < graph_.arguments.size()) {
    stream.push_back(batch.target.is_floating_point() ? batch.target.to(dtype()) : batch.target);
  }
  if (stream.size() != graph_.arguments.size()) {
    throw bad_input(fmt::format("{} reads {} tensor{} ({}), and the data gives {}", name_, graph_.arguments.size(),
                                graph_.arguments.size() == 1 ? "" : "s", join(graph_.arguments, ", "), stream.size()),
                    "name them in data.inputs, in the order of forward");
  }
  return stream;
}

c10::IValue ScriptModel::call(std::size_t unit, const Stream& x, bool training, Stream* leaving) {
  if (training != training_) set_training(module_, training);
  training_ = training;
  const ScriptSegment& segment = *units_[unit]->segment;
  const jit::GraphOptimizerEnabledGuard as_written(false);
  const compat::AutocastScope autocast(autocast_, x.front().device());
  jit::Stack stack{module_._ivalue()};
  for (std::size_t i = 0; i < x.size(); ++i) stack.emplace_back(segment.written[i] != 0 ? x[i].clone() : x[i]);
  try {
    units_[unit]->executor.run(stack);
  } catch (const std::exception& error) {
    throw bad_input(fmt::format("{}: {} failed: {}", name_, segment.name, reason_of(error)),
                    "does forward run in Python with tensors of these sizes and types?");
  }
  if (leaving == nullptr) return stack.at(0);
  for (const c10::IValue& value : stack) leaving->push_back(value.toTensor());
  return {};
}

Tensor ScriptModel::result_of(const c10::IValue& value) const {
  if (value.isTensor()) return value.toTensor();
  if (value.isTuple() && !value.toTupleRef().elements().empty() && value.toTupleRef().elements()[0].isTensor()) {
    return value.toTupleRef().elements()[0].toTensor();
  }
  throw bad_input(fmt::format("{} returns {}, and a loss needs a tensor", name_, value.tagKind()),
                  "return a tensor, or a tuple whose first is one");
}

UnitOutput ScriptModel::run_unit(std::size_t unit, const Stream& x, const UnitBatch& batch) {
  UnitOutput output;
  if (!is_last(unit)) {
    call(unit, x, batch.context.training, &output.stream);
    return output;
  }
  const Tensor result = result_of(call(unit, x, batch.context.training, nullptr));
  output.loss = own_loss_ ? own_loss_->compute(result, batch.target, batch.context.training)
                          : script_loss(spec().script.loss, result, batch.target, !batch.context.training, name_);
  return output;
}

Tensor ScriptModel::predict_unit(std::size_t unit, const Stream& x, const UnitBatch& batch) {
  return result_of(call(unit, x, batch.context.training, nullptr));
}

}  // namespace lockstep::nn
