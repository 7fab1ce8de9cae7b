#include "lockstep/nn/lora.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::nn {
namespace {

using NamedLinear = std::pair<std::string, std::shared_ptr<Linear>>;

bool is_classifier(const std::string& module) { return module == "score" || module == "classifier"; }

// The linear layers inside the model. Heads are not targets: the loss reads their weights directly.
std::vector<NamedLinear> inner_linear_layers(const LanguageModel& model) {
  std::vector<NamedLinear> layers;
  for (const auto& entry : model.named_modules("", /*include_self=*/false)) {
    const std::string& name = entry.key();
    if (is_classifier(name) || name == "lm_head" || name == "cls.predictions.decoder") continue;
    if (auto layer = std::dynamic_pointer_cast<Linear>(entry.value())) layers.emplace_back(name, layer);
  }
  return layers;
}

bool is_named(const std::string& module, const std::string& target) {
  return module == target || module.ends_with("." + target);
}

// Which parts of A and B this rank holds. A layer cut by outputs makes its own rows of B A x from all of A, and its
// gradient of A is what its rows contribute. One cut by inputs makes a part of A x from its columns of A; B is whole,
// and each rank's gradient of it is the part that comes from its own A x. Otherwise both are held like the weight.
std::pair<LinearCut, LinearCut> cuts_of(const Linear& layer, std::int64_t tp) {
  const Placement& weight = layer.declared().front().placement;
  const Sharing like_weight{weight.sharers, weight.partial_gradient};
  LinearCut cut{.weight = like_weight, .expert = weight.expert};
  if (weight.segments.empty()) return {cut, cut};
  const LinearCut whole{.weight = {tp, tp > 1}, .expert = weight.expert};
  const bool by_outputs = (weight.dim == 0) == (layer.layout() == WeightLayout::kOutIn);
  cut.kind = by_outputs ? LinearCut::Kind::kOutputs : LinearCut::Kind::kInputs;
  cut.segments = weight.segments;
  return by_outputs ? std::pair{whole, cut} : std::pair{cut, whole};
}

void adapt(Linear& layer, const spec::Lora& lora, std::int64_t tp) {
  const std::vector<std::int64_t>& sizes = layer.declared().front().placement.whole;
  const bool out_in = layer.layout() == WeightLayout::kOutIn;
  const std::int64_t in = sizes[out_in ? 1 : 0], out = sizes[out_in ? 0 : 1];
  const auto [cut_a, cut_b] = cuts_of(layer, tp);
  const auto make = [&](std::int64_t from, std::int64_t to, const Init& init, const LinearCut& cut) {
    return std::make_shared<Linear>(from, to, /*with_bias=*/false, WeightLayout::kOutIn, init, layer.weight.options(),
                                    cut);
  };
  auto adapter = std::make_shared<LowRank>();
  adapter->a = layer.register_module("lora_A", make(in, lora.rank, Init{Init::Kind::kKaimingUniform}, cut_a));
  adapter->b = layer.register_module("lora_B", make(lora.rank, out, Init{Init::Kind::kNormal, 0.0}, cut_b));
  adapter->scale = lora.alpha / static_cast<double>(lora.rank);
  layer.lora = std::move(adapter);
}

void check_targets(const std::vector<NamedLinear>& layers, const std::vector<std::string>& targets) {
  for (const std::string& target : targets) {
    const auto names = [&](const NamedLinear& layer) { return is_named(layer.first, target); };
    if (std::any_of(layers.begin(), layers.end(), names)) continue;
    throw bad_input("lora: the model has no linear layer " + target, "name layers as the model's files do");
  }
}

}  // namespace

bool is_lora_name(const std::string& parameter_name) {
  return parameter_name.find(".lora_A.") != std::string::npos || parameter_name.find(".lora_B.") != std::string::npos;
}

void add_lora(LanguageModel& model, const spec::Lora& lora) {
  const std::vector<NamedLinear> layers = inner_linear_layers(model);
  if (model.part().first_layer < model.part().end_layer) check_targets(layers, lora.targets);
  for (const auto& child : model.named_children()) {
    if (is_classifier(child.key())) continue;
    for (torch::Tensor& parameter : child.value()->parameters()) parameter.requires_grad_(false);
  }
  for (const auto& [name, layer] : layers) {
    const auto names = [&name = name](const std::string& target) { return is_named(name, target); };
    if (!layer->plain()) continue;
    if (std::any_of(lora.targets.begin(), lora.targets.end(), names)) adapt(*layer, lora, model.partition().tp_size());
  }
}

void add_low_rank(torch::Tensor weight, const torch::Tensor& a, const torch::Tensor& b, double scale,
                  WeightLayout layout) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor change = b.mm(a);  // [out, in]
  weight.add_(layout == WeightLayout::kOutIn ? change : change.t(), scale);
}

}  // namespace lockstep::nn
