#include "lockstep/nn/foreign_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/nn/image_model.h"

namespace lockstep::nn {

using torch::Tensor;

namespace {

// One submodule of the model, so that parameters and buffers have the names they have outside.
class ForeignLayer : public Layer {
 public:
  using Layer::adopt;
};

}  // namespace

ForeignModel::ForeignModel(const spec::Model& spec, const BuildOptions& options, std::function<Tensors()> read_again)
    : UnitModel(spec, options.dtype),
      name_(spec.name),
      part_(options.part),
      autocast_(options.autocast),
      initial_(std::make_shared<InitialValues>()) {
  initial_->read_again = std::move(read_again);
}

void ForeignModel::convert_tensors() {
  const bool trains = std::any_of(parameters_.begin(), parameters_.end(),
                                  [](const auto& entry) { return entry.second.requires_grad(); });
  if (!trains) throw bad_input(name_ + " has no parameters to train", "do not freeze all of them");
  const torch::NoGradGuard no_grad;
  for (auto* tensors : {&parameters_, &buffers_}) {
    for (auto& [name, tensor] : *tensors) {
      if (tensor.is_floating_point() && tensor.scalar_type() != dtype()) tensor.set_data(tensor.to(dtype()));
    }
  }
  for (auto& [name, tensor] : buffers_) {
    if (!tensor.is_contiguous()) tensor.set_data(tensor.contiguous());  // they travel between ranks
  }
  for (const auto& [name, tensor] : parameters_) {
    if (!tensor.is_floating_point()) {
      throw bad_input(fmt::format("{}: parameter {} holds whole numbers", name_, name), "make it a buffer");
    }
    initial_->values[name] = tensor.detach();
  }
}

std::vector<Tensor> ForeignModel::keep_tensors(const std::set<std::string>& anywhere, const std::set<std::string>& here,
                                               bool whole) {
  // What forward never touches has no gradient: it stays as it is, as it does in PyTorch.
  std::vector<Tensor> unused;
  for (auto& [name, tensor] : parameters_) {
    if (anywhere.contains(name)) continue;
    tensor.requires_grad_(false);
    if (part_.head) unused.push_back(tensor);
  }
  for (auto* tensors : {&parameters_, &buffers_}) {
    std::erase_if(*tensors, [&](auto& entry) {
      auto& [name, tensor] = entry;
      if (whole || here.contains(name) || (!anywhere.contains(name) && part_.head)) return false;
      initial_->values.erase(name);
      tensor.set_data(torch::empty({0}, tensor.options()));
      return true;
    });
  }
  return unused;
}

void ForeignModel::register_tensors() {
  std::map<std::string, std::shared_ptr<ForeignLayer>> layers;
  const std::function<std::shared_ptr<ForeignLayer>(const std::string&)> layer_at = [&](const std::string& path) {
    const auto found = layers.find(path);
    if (found != layers.end()) return found->second;
    auto layer = std::make_shared<ForeignLayer>();
    const std::size_t dot = path.rfind('.');
    if (dot == std::string::npos) {
      register_module(path, layer);
    } else {
      layer_at(path.substr(0, dot))->register_module(path.substr(dot + 1), layer);
    }
    layers[path] = layer;
    return layer;
  };
  const auto split = [](const std::string& name) {
    const std::size_t dot = name.rfind('.');
    return dot == std::string::npos ? std::pair<std::string, std::string>{"", name}
                                    : std::pair{name.substr(0, dot), name.substr(dot + 1)};
  };
  const InitialValue as_built = [values = initial_](Tensor& out, std::int64_t first, std::uint64_t,
                                                    const std::string& name) {
    if (values->values.empty()) values->values = values->read_again();
    out.copy_(values->values.at(name).detach().reshape({-1}).narrow(0, first, out.numel()));
  };
  for (const auto& [name, tensor] : parameters_) {
    const auto [path, leaf] = split(name);
    Placement placement{.whole = tensor.sizes().vec()};
    if (!path.empty()) {
      layer_at(path)->adopt(leaf, tensor, std::move(placement), as_built);
      continue;
    }
    register_parameter(leaf, tensor, tensor.requires_grad());
    declared_.push_back({leaf, tensor, std::move(placement), as_built});
  }
  for (const auto& [name, tensor] : buffers_) {
    const auto [path, leaf] = split(name);
    path.empty() ? register_buffer(leaf, tensor) : layer_at(path)->register_buffer(leaf, tensor);
  }
}

Stream ForeignModel::inputs_of(const UnitBatch& batch) const {
  Stream stream = {batch.input};
  if (batch.input.scalar_type() == torch::kByte && batch.input.dim() == 4) {
    stream.front() = normalised_images(batch.input, dtype());
  }
  stream.insert(stream.end(), batch.context.more_inputs.begin(), batch.context.more_inputs.end());
  for (Tensor& tensor : stream) {
    if (tensor.is_floating_point()) tensor = tensor.to(dtype());
  }
  return stream;
}

// The end has nothing between it and its backward.
bool ForeignModel::recomputes(std::size_t unit, plan::Recompute recompute) const {
  return recompute == plan::Recompute::kFull && !is_last(unit);
}

Tensor ForeignModel::forward(const Tensor& input, const ForwardContext& context) {
  const Tensor none;
  const UnitBatch batch{input, none, context};
  Stream x = first_stream(batch);
  for (std::size_t i = 0; i + 1 < unit_count(); ++i) x = run_unit(i, x, batch).stream;
  return predict_unit(unit_count() - 1, x, batch);
}

LossResult ForeignModel::loss(const Tensor& input, const Tensor& target, const ForwardContext& context) {
  const UnitBatch batch{input, target, context};
  Stream x = first_stream(batch);
  for (std::size_t i = 0; i + 1 < unit_count(); ++i) x = run_unit(i, x, batch).stream;
  return *run_unit(unit_count() - 1, x, batch).loss;
}

}  // namespace lockstep::nn
