#include "lockstep/nn/hf_weights.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "lockstep/base/error.h"
#include "lockstep/nn/file_layout.h"
#include "lockstep/nn/lora.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

bool starts_with_any(const std::string& name, std::initializer_list<const char*> starts) {
  return std::any_of(starts.begin(), starts.end(), [&](const char* start) { return name.rfind(start, 0) == 0; });
}

bool ends_with_any(const std::string& name, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return name.ends_with(end); });
}

std::string with_end(const std::string& name, std::string_view old_end, std::string_view new_end) {
  return name.substr(0, name.size() - old_end.size()).append(new_end);
}

// Other spellings of one of our names. Files converted from TensorFlow (the published bert-base-uncased is one) call
// the numbers of a LayerNorm gamma and beta; the bias of BERT's decoder is one tensor with two names.
std::vector<std::string> spellings_of(const std::string& name, const spec::Model& spec) {
  std::vector<std::string> spellings{name};
  if (spec.arch == spec::Arch::kBert) {
    if (name.ends_with("LayerNorm.weight")) spellings.push_back(with_end(name, "weight", "gamma"));
    if (name.ends_with("LayerNorm.bias")) spellings.push_back(with_end(name, "bias", "beta"));
    if (name == "cls.predictions.bias") spellings.push_back("cls.predictions.decoder.bias");
    if (name == "cls.predictions.decoder.bias") spellings.push_back("cls.predictions.bias");
  }
  const std::string prefix = base_prefix(spec);
  if (prefix.empty() || name.rfind(prefix, 0) != 0) return spellings;
  const std::size_t count = spellings.size();
  for (std::size_t i = 0; i < count; ++i) spellings.push_back(spellings[i].substr(prefix.size()));
  return spellings;
}

bool may_be_unused_by_bert(const std::string& name, const spec::Model& spec) {
  if (ends_with_any(name, {"embeddings.position_ids"})) return true;
  if (spec.classes > 0) return name.rfind("cls.", 0) == 0;
  // The masked-LM model pools nothing; its decoder is the word embedding, unless it has one with a bias of its own.
  if (starts_with_any(name, {"bert.pooler.", "pooler.", "cls.seq_relationship."})) return true;
  return spec.tied_embeddings ? name.rfind("cls.predictions.decoder.", 0) == 0 : name == "cls.predictions.bias";
}

std::string text_of(torch::IntArrayRef sizes) {
  std::ostringstream text;
  text << sizes;
  return text.str();
}

// At most three names, then a count: an error stays one line.
std::string some_of(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(3, names.size()); ++i) text += (i ? ", " : "") + names[i];
  if (names.size() > 3) text += " and " + std::to_string(names.size() - 3) + " more";
  return text;
}

// The whole model that `spec` describes, whatever part of it this rank holds.
TensorSizes sizes_of_whole_model(const spec::Model& spec) {
  const auto model = build_model(spec, {.device = torch::kMeta, .initialise = false});
  TensorSizes sizes;
  for (const DeclaredParameter& parameter : declared_parameters(*model)) {
    sizes.emplace(parameter.name, parameter.placement.whole);
  }
  for (const auto& buffer : model->named_buffers()) sizes.emplace(buffer.key(), buffer.value().sizes().vec());
  return sizes;
}

struct Matching {
  std::map<std::string, FilePlace> places;  // by our names; their names are the file's spelling
  LoadReport report;
};

void check_sizes(const std::string& ours, const FilePlace& place, const WeightSource& source) {
  const std::vector<std::int64_t>& found = source.sizes.at(place.name);
  if (found == place.sizes) return;
  const bool head = ours == "score.weight" || ours.rfind("classifier.", 0) == 0;
  throw bad_input(source.name + ": tensor " + place.name + " has shape " + text_of(found) + " but the model needs " +
                      text_of(place.sizes),
                  head ? "set model.classes to the number of classes in the file"
                       : "use weights and a model description of the same size");
}

Matching match(const TensorSizes& ours, const WeightSource& source, const spec::Model& spec) {
  Matching matching;
  std::vector<std::string> missing, unexpected;
  std::set<std::string> taken;
  const auto file_has = [&](const std::string& name) { return source.sizes.count(name) > 0; };
  for (const auto& [name, sizes] : ours) {
    FilePlace place = file_place(name, sizes, spec);
    if (const auto file_name = file_name_of(place.name, file_has, spec)) {
      place.name = *file_name;
      check_sizes(name, place, source);
      taken.insert(place.name);
      matching.places.emplace(name, std::move(place));
    } else {
      (may_start_anew(name, spec) ? matching.report.initial : missing).push_back(name);
    }
  }
  for (const auto& [name, sizes] : source.sizes) {
    if (taken.count(name) == 0) (may_be_unused(name, spec) ? matching.report.unused : unexpected).push_back(name);
  }
  if (!unexpected.empty()) {
    throw bad_input(
        source.name + ": unexpected tensors " + some_of(unexpected) + " for arch " + spec::to_string(spec.arch),
        "check that the weights belong to this model");
  }
  if (!missing.empty()) {
    throw bad_input(source.name + ": missing tensors " + some_of(missing),
                    "check that the file is whole and of this model");
  }
  return matching;
}

void fill(const LocalValues& local, const Placement& placement, const FilePlace& place, const WeightSource& source) {
  const bool in_place = local.values.is_cpu() && local.values.is_contiguous();
  const Tensor values =
      in_place ? local.values.detach() : torch::empty(local.values.sizes(), local.values.options().device(torch::kCPU));
  for (const Run& run : runs_of(placement, local.first, values.numel())) {
    for (const Run& piece : place.runs(run.whole, run.count)) {
      const std::int64_t at = run.local - local.first + (piece.local - run.whole);
      source.read(place.name, piece.whole, values.narrow(0, at, piece.count));
    }
  }
  if (!in_place) local.values.detach().copy_(values);
}

void fill_parts(const Matching& matching, const std::vector<DeclaredParameter>& parameters,
                const std::function<LocalValues(const DeclaredParameter&)>& values_of, const WeightSource& source) {
  for (const DeclaredParameter& parameter : parameters) {
    if (is_lora_name(parameter.name)) continue;
    const auto place = matching.places.find(parameter.name);
    if (place == matching.places.end()) continue;
    const LocalValues local = values_of(parameter);
    if (!local.values.defined() || local.values.numel() == 0) continue;
    fill(local, parameter.placement, place->second, source);
  }
}

WeightSource source_of(const TensorMap& weights, const std::string& name) {
  WeightSource source{name, {}, [&weights](const std::string& file_name, std::int64_t first, Tensor out) {
                        out.copy_(weights.at(file_name).reshape({-1}).narrow(0, first, out.numel()));
                      }};
  for (const auto& [tensor_name, tensor] : weights) source.sizes.emplace(tensor_name, tensor.sizes().vec());
  return source;
}

}  // namespace

std::optional<std::string> file_name_of(const std::string& family_name,
                                        const std::function<bool(const std::string&)>& file_has,
                                        const spec::Model& spec) {
  for (const std::string& name : spellings_of(family_name, spec)) {
    if (file_has(name)) return name;
  }
  return std::nullopt;
}

bool may_start_anew(const std::string& our_name, const spec::Model& spec) {
  if (our_name.ends_with(".num_batches_tracked")) return true;  // files of old torchvision models lack it
  if (spec.arch == spec::Arch::kBert) return starts_with_any(our_name, {"bert.pooler.", "classifier.", "cls."});
  return spec.is_language_model() && our_name == "score.weight";
}

bool may_be_unused(const std::string& file_name, const spec::Model& spec) {
  if (spec.arch == spec::Arch::kBert) return may_be_unused_by_bert(file_name, spec);
  if (ends_with_any(file_name, {".attn.bias", ".attn.masked_bias", ".rotary_emb.inv_freq"})) return true;
  // Causal masks of old files of GPT-NeoX.
  if (spec.decoder.family == spec::Family::kNeox &&
      ends_with_any(file_name, {".attention.bias", ".attention.masked_bias"})) {
    return true;
  }
  const bool head = file_name == "lm_head.weight" || file_name == "embed_out.weight";
  return head && (spec.classes > 0 || spec.tied_embeddings);
}

LoadReport load_parts(const spec::Model& spec, const std::vector<DeclaredParameter>& parameters,
                      const std::function<LocalValues(const DeclaredParameter&)>& values_of,
                      const WeightSource& source) {
  const Matching matching = match(sizes_of_whole_model(spec), source, spec);
  const torch::NoGradGuard no_grad;
  fill_parts(matching, parameters, values_of, source);
  return matching.report;
}

LoadReport load_weights(TrainableModel& model, const TensorMap& weights, const std::string& source) {
  const WeightSource tensors = source_of(weights, source);
  const Matching matching = match(sizes_of_whole_model(model.spec()), tensors, model.spec());
  const torch::NoGradGuard no_grad;
  fill_parts(
      matching, declared_parameters(model),
      [](const DeclaredParameter& parameter) { return LocalValues{parameter.tensor.detach().view({-1})}; }, tensors);
  for (auto& buffer : model.named_buffers()) {
    const auto place = matching.places.find(buffer.key());
    if (place != matching.places.end()) buffer.value().copy_(weights.at(place->second.name));
  }
  return matching.report;
}

TensorMap state_dict(const TrainableModel& model) {
  TensorMap state;
  for (const auto& entry : model.named_parameters()) state.emplace(entry.key(), entry.value());
  for (const auto& entry : model.named_buffers()) state.emplace(entry.key(), entry.value());
  return state;
}

}  // namespace lockstep::nn
