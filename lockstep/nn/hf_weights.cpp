#include "lockstep/nn/hf_weights.h"

#include <algorithm>
#include <sstream>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Hugging Face files may carry constants: causal masks of GPT-2, rotary frequencies of Llama.
bool is_constant(const std::string& name) {
  return ends_with(name, ".attn.bias") || ends_with(name, ".attn.masked_bias") ||
         ends_with(name, ".rotary_emb.inv_freq");
}

std::string base_prefix(const TrainableModel& model) {
  if (model.spec().arch == spec::Arch::kGpt) return "transformer.";
  return model.spec().arch == spec::Arch::kLlama ? "model." : "";
}

std::string shape_of(const Tensor& tensor) {
  std::ostringstream text;
  text << tensor.sizes();
  return text.str();
}

// At most three names, then a count: an error stays one line.
std::string some_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, names.size()); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > 3) text += " and " + std::to_string(names.size() - 3) + " more";
  return text;
}

// batch norm counts its batches in a buffer that old files lack.
bool is_optional(const std::string& name) { return ends_with(name, ".num_batches_tracked"); }

struct Matches {
  std::vector<std::pair<Tensor, Tensor>> copies;  // to, from
  std::vector<std::string> unexpected;
  std::map<std::string, bool> found;
};

void match(const std::string& given, const Tensor& tensor, const TensorMap& state, const std::string& prefix,
           const std::string& source, Matches& matches) {
  auto slot = state.find(given);
  if (slot == state.end()) slot = state.find(prefix + given);
  if (slot == state.end()) {
    matches.unexpected.push_back(given);
    return;
  }
  if (slot->second.sizes() != tensor.sizes()) {
    throw bad_input(source + ": tensor " + given + " has shape " + shape_of(tensor) + " but the model needs " +
                        shape_of(slot->second),
                    "use weights and a model description of the same size");
  }
  matches.found[slot->first] = true;
  matches.copies.emplace_back(slot->second, tensor);
}

}  // namespace

TensorMap state_dict(const TrainableModel& model) {
  TensorMap state;
  for (const auto& entry : model.named_parameters()) state.emplace(entry.key(), entry.value());
  for (const auto& entry : model.named_buffers()) state.emplace(entry.key(), entry.value());
  return state;
}

void load_weights(TrainableModel& model, const TensorMap& weights, const std::string& source) {
  const TensorMap state = state_dict(model);
  const bool head_is_tied = state.count("lm_head.weight") == 0 && model.spec().tied_embeddings;
  Matches matches;
  for (const auto& [name, tensor] : weights) {
    if (is_constant(name) || (head_is_tied && name == "lm_head.weight")) continue;
    match(name, tensor, state, base_prefix(model), source, matches);
  }
  if (!matches.unexpected.empty()) {
    throw bad_input(source + ": unexpected tensors " + some_of(matches.unexpected) + " for arch " +
                        spec::to_string(model.spec().arch),
                    "check that the weights belong to this model");
  }
  std::vector<std::string> missing;
  for (const auto& [name, tensor] : state) {
    if (matches.found.count(name) == 0 && !is_optional(name)) missing.push_back(name);
  }
  if (!missing.empty()) {
    throw bad_input(source + ": missing tensors " + some_of(missing), "check that the file is whole and of this model");
  }
  const torch::NoGradGuard no_grad;
  for (auto& [to, from] : matches.copies) to.copy_(from);
}

}  // namespace lockstep::nn
