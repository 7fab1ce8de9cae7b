#include "lockstep/engine/pretrained.h"

#include <algorithm>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/hf_folder.h"
#include "lockstep/checkpoint/hf_folder_writer.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/engine/peft.h"
#include "lockstep/engine/run_health.h"
#include "lockstep/nn/file_layout.h"
#include "lockstep/nn/hf_weights.h"
#include "lockstep/nn/lora.h"
#include "lockstep/spec/hf_config.h"

namespace lockstep::engine {
namespace {

using parallel::FlatShard;
using torch::Tensor;

constexpr const char* kLoraA = ".lora_A.weight";
constexpr const char* kLoraB = ".lora_B.weight";

// `files` is kept by reference.
nn::WeightSource source_of(const checkpoint::WeightFiles& files, const std::string& path) {
  nn::WeightSource source;
  source.name = path;
  for (const std::string& name : files.names()) source.sizes[name] = files.entry(name).shape;
  source.read = [&files, path](const std::string& name, std::int64_t first, const Tensor& out) {
    if (!torch::isFloatingType(files.entry(name).dtype)) {
      throw bad_input("tensor " + printable(name) + " holds whole numbers, weights are real numbers",
                      "dequantise it first, or name another file", {path});
    }
    files.read_range(name, first, out);
    if (!is_finite(out)) {
      throw bad_input("tensor " + printable(name) + " holds values that are not finite",
                      "these weights are damaged; name another file", {path});
    }
  };
  return source;
}

}  // namespace

void merge_adapters(parallel::TensorMap& weights, const spec::Model& spec, const spec::Lora& lora) {
  const auto layout = spec.arch == spec::Arch::kGpt ? nn::WeightLayout::kInOut : nn::WeightLayout::kOutIn;
  const double scale = lora.alpha / static_cast<double>(lora.rank);
  for (auto entry = weights.begin(); entry != weights.end();) {
    const std::size_t at = entry->first.rfind(kLoraA);
    if (at == std::string::npos) {
      ++entry;
      continue;
    }
    const std::string layer = entry->first.substr(0, at);
    const auto b = weights.find(layer + kLoraB), weight = weights.find(layer + ".weight");
    LOCKSTEP_ASSERT(b != weights.end() && weight != weights.end(), "an adapter has two matrices and a layer");
    weight->second = weight->second.clone();  // it may be a view of the live one
    nn::add_low_rank(weight->second, entry->second, b->second, scale, layout);
    weights.erase(b);
    entry = weights.erase(entry);
  }
}

nn::LoadReport load_pretrained(nn::TrainableModel& model, const std::string& path) {
  const checkpoint::WeightFiles files = checkpoint::WeightFiles::open(path);
  const auto whole = [](const nn::DeclaredParameter& parameter) {
    return nn::LocalValues{parameter.tensor.detach().view({-1})};
  };
  nn::LoadReport report = nn::load_parts(model.spec(), nn::declared_parameters(model), whole, source_of(files, path));
  const std::vector<std::string> there = files.names();
  for (auto& buffer : model.named_buffers()) {  // running statistics, which only our own folders have
    if (std::find(there.begin(), there.end(), buffer.key()) == there.end()) continue;
    Tensor flat = torch::empty({buffer.value().numel()}, buffer.value().options());
    files.read_range(buffer.key(), 0, flat);
    buffer.value().copy_(flat.view(buffer.value().sizes()));
  }
  return report;
}

nn::LoadReport load_pretrained(parallel::ParallelModel& model, const spec::Model& spec, const std::string& path) {
  const bool adapted = is_adapter_folder(path);
  const std::string base = adapted ? base_of_adapter(path) : path;
  const checkpoint::WeightFiles files = checkpoint::WeightFiles::open(base);
  const nn::WeightSource source = source_of(files, base);
  std::vector<nn::DeclaredParameter> parameters;
  std::map<const void*, nn::LocalValues> held;
  for (const auto& shard : model.shards()) {
    for (std::size_t i = 0; i < shard->parameters().size(); ++i) {
      parameters.push_back(shard->parameters()[i]);
      held[parameters.back().tensor.unsafeGetTensorImpl()] = shard->own_values(i, shard->master());
    }
  }
  const auto values_of = [&](const nn::DeclaredParameter& parameter) {
    return held.at(parameter.tensor.unsafeGetTensorImpl());
  };
  nn::LoadReport report = nn::load_parts(spec, parameters, values_of, source);
  if (adapted) load_adapter(path, spec, model.options().lora, parameters, values_of);
  model.adopt_master();
  return report;
}

namespace {

// A state dict under the module's own names: `module.load_state_dict(safetensors.torch.load_file(...))`.
void export_script(parallel::TensorMap tensors, const spec::Script& script, const std::string& folder) {
  for (const auto& [alias, saved] : script.facts.aliases) {
    if (const auto found = tensors.find(saved); found != tensors.end()) tensors[alias] = found->second;
  }
  make_folders(folder);
  checkpoint::write_safetensors(std::filesystem::path(folder) / "model.safetensors", tensors, {{"format", "pt"}});
}

// Running statistics. A pipeline of modules has none: they would be on other ranks.
void add_buffers(parallel::ParallelModel& model, parallel::TensorMap& weights) {
  if (model.layout().pp > 1) return;
  for (nn::TrainableModel* chunk : model.models()) {
    if (!chunk->spec().is_scripted() && !chunk->spec().is_image_model()) continue;
    for (const auto& buffer : chunk->named_buffers()) weights[buffer.key()] = buffer.value();
  }
}

}  // namespace

void export_weights_of(const parallel::TensorMap& weights, const spec::Model& spec, const std::string& folder,
                       const std::string& tokenizer_folder) {
  if (spec.is_scripted()) return export_script(weights, spec.script, folder);
  checkpoint::WeightFolderOptions options;
  options.tokenizer_source = tokenizer_folder;
  checkpoint::WeightFolderWriter writer(folder, spec::to_hf_config(spec), options);
  for (const auto& [name, tensor] : nn::to_file_tensors(weights, spec)) writer.add(name, tensor);
  writer.finish();
}

void export_pretrained(parallel::ParallelModel& model, const spec::Model& spec, const std::string& folder,
                       const std::string& tokenizer_folder) {
  parallel::TensorMap weights = model.assemble([](const FlatShard& shard) { return shard.weights(); });
  add_buffers(model, weights);
  if (model.groups().world.rank() == 0) {
    if (model.options().lora.rank > 0) merge_adapters(weights, spec, model.options().lora);
    export_weights_of(weights, spec, folder, tokenizer_folder);
  }
  model.groups().world.barrier().wait();
}

}  // namespace lockstep::engine
