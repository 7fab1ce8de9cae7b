#include "lockstep/engine/peft.h"

#include <fmt/format.h>

#include <cmath>
#include <filesystem>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/checkpoint/durable_file.h"
#include "lockstep/checkpoint/hf_folder.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/nn/file_layout.h"
#include "lockstep/nn/lora.h"

namespace lockstep::engine {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using torch::Tensor;

constexpr const char* kConfig = "adapter_config.json";
constexpr const char* kWeights = "adapter_model.safetensors";
constexpr const char* kPrefix = "base_model.model.";

bool is_head(const std::string& name) { return name.rfind("score.", 0) == 0 || name.rfind("classifier.", 0) == 0; }

// "model.layers.0.self_attn.q_proj.lora_A.weight" -> the layer's path in the family's files.
std::string module_in_files(const std::string& name, const spec::Model& spec) {
  const std::string module = name.substr(0, name.rfind(".lora_"));
  const nn::FilePlace place = nn::file_place(module + ".weight", {1, 1}, spec);
  if (!place.rows.empty()) {
    throw bad_input(
        fmt::format("{}: its files pack {} with others, and PEFT has no adapter for a part", spec.name, module),
        "export merged weights instead (without --adapter)");
  }
  return place.name.substr(0, place.name.rfind('.'));
}

// Under which a file of PEFT has our parameter.
std::string peft_name(const std::string& name, const spec::Model& spec) {
  if (!nn::is_lora_name(name)) return kPrefix + name;
  return kPrefix + module_in_files(name, spec) + name.substr(name.rfind(".lora_"));
}

// What adapters on `spec` are made of, by our names; a classifier's own weights too.
nn::TensorSizes sizes_of_adapter(const spec::Model& spec, const spec::Lora& lora) {
  const auto model = nn::build_model(spec, {.device = torch::kMeta, .initialise = false});
  auto* language = dynamic_cast<nn::LanguageModel*>(model.get());
  LOCKSTEP_ASSERT(language != nullptr, "adapters are on language models");
  nn::add_lora(*language, lora);
  nn::TensorSizes sizes;
  for (const nn::DeclaredParameter& parameter : nn::declared_parameters(*model)) {
    if (nn::is_lora_name(parameter.name) || is_head(parameter.name)) sizes[parameter.name] = parameter.placement.whole;
  }
  return sizes;
}

// The targets as PEFT matches them: by the end of a layer's path.
std::set<std::string> target_modules(const nn::TensorSizes& adapters, const spec::Model& spec, const spec::Lora& lora) {
  std::set<std::string> targets;
  for (const auto& [name, sizes] : adapters) {
    if (!nn::is_lora_name(name)) continue;
    const std::string ours = name.substr(0, name.rfind(".lora_")), theirs = module_in_files(name, spec);
    const std::vector<std::string> path = split(theirs, '.');
    for (const std::string& target : lora.targets) {
      if (!ours.ends_with("." + target)) continue;
      const bool same = theirs.ends_with("." + target);
      targets.insert(same ? target : path[path.size() - 2] + "." + path.back());
    }
  }
  return targets;
}

JsonReader config_of(const std::string& folder, const json& text) {
  return {text, (fs::path(folder) / kConfig).string()};
}

// What would make other numbers of the same matrices.
void check_config(const JsonReader& config, const spec::Lora& lora) {
  if (config.text("peft_type") != "LORA") config.fail("peft_type", "is not LORA", "only LoRA adapters are read");
  if (lora.rank == 0) config.fail("", "holds adapters and the job trains none", "add lora: {rank, alpha, targets}");
  if (config.integer("r", 1) != lora.rank) {
    config.fail("r", fmt::format("is {} and lora.rank {}", config.integer("r"), lora.rank), "set lora.rank to it");
  }
  if (config.real("lora_alpha") != lora.alpha) {
    config.fail("lora_alpha", fmt::format("is {} and lora.alpha {}", config.real("lora_alpha"), lora.alpha),
                "set lora.alpha to it");
  }
  for (const char* key : {"use_dora", "use_rslora", "lora_bias"}) {
    if (config.boolean_or(key, false)) config.fail(key, "is true", "this variant of LoRA is not supported");
  }
  if (config.text("bias", "none") != "none") config.fail("bias", "is not none", "trained biases are not supported");
  for (const char* key : {"rank_pattern", "alpha_pattern"}) {
    const auto pattern = config.object_or_none(key);
    if (pattern && !pattern->value().empty()) config.fail(key, "is not empty", "one rank and alpha for all layers");
  }
}

// Names and shapes, before anything is read. By our name, the file's.
std::map<std::string, std::string> match(const checkpoint::WeightFiles& files, const spec::Model& spec,
                                         const spec::Lora& lora, const std::string& file) {
  std::map<std::string, std::string> names;
  std::set<std::string> taken;
  for (const auto& [name, sizes] : sizes_of_adapter(spec, lora)) {
    const std::string theirs = peft_name(name, spec);
    if (!files.contains(theirs)) {
      throw bad_input(file + ": missing tensor " + theirs, "lora.targets must be those of the adapter");
    }
    if (files.entry(theirs).shape != sizes) {
      throw bad_input(file + ": tensor " + theirs + " has another shape than the model's layer",
                      "use the adapter with the model it was made for");
    }
    names[name] = theirs;
    taken.insert(theirs);
  }
  for (const std::string& name : files.names()) {
    if (taken.count(name) > 0) continue;
    throw bad_input(file + ": unexpected tensor " + printable(name), "lora.targets must be those of the adapter");
  }
  return names;
}

void fill(const nn::LocalValues& local, const nn::Placement& placement, const checkpoint::WeightFiles& files,
          const std::string& name) {
  const Tensor values = torch::empty(local.values.sizes(), local.values.options().device(torch::kCPU));
  for (const nn::Run& run : nn::runs_of(placement, local.first, values.numel())) {
    files.read_range(name, run.whole, values.narrow(0, run.local - local.first, run.count));
  }
  local.values.detach().copy_(values);
}

json adapter_config(const nn::TensorSizes& adapters, const spec::Model& spec, const spec::Lora& lora,
                    const std::string& base) {
  json saved = json::array();
  for (const auto& [name, sizes] : adapters) {
    if (is_head(name) && name.ends_with(".weight")) saved.push_back(name.substr(0, name.find('.')));
  }
  const bool whole = lora.alpha == std::floor(lora.alpha);
  return {{"peft_type", "LORA"},
          {"task_type", spec.classes > 0 ? "SEQ_CLS" : (spec.arch == spec::Arch::kBert ? json(nullptr) : "CAUSAL_LM")},
          {"base_model_name_or_path", base.empty() ? json(nullptr) : json(base)},
          {"r", lora.rank},
          {"lora_alpha", whole ? json(static_cast<std::int64_t>(lora.alpha)) : json(lora.alpha)},
          {"lora_dropout", 0.0},
          {"target_modules", target_modules(adapters, spec, lora)},
          {"modules_to_save", saved.empty() ? json(nullptr) : saved},
          {"bias", "none"},
          {"fan_in_fan_out", spec.arch == spec::Arch::kGpt},
          {"init_lora_weights", true},
          {"inference_mode", true}};
}

}  // namespace

bool is_adapter_folder(const std::string& path) {
  std::error_code ignored;
  return fs::is_regular_file(fs::path(path) / kConfig, ignored);
}

std::string base_of_adapter(const std::string& folder) {
  const json text = read_json_file(fs::path(folder) / kConfig, 1 << 20);
  const std::string base = config_of(folder, text).text("base_model_name_or_path");
  std::error_code ignored;
  for (const fs::path& path : {fs::path(base), fs::path(folder) / base}) {
    if (fs::is_directory(path, ignored)) return path.string();
  }
  throw environment_error(fmt::format("the adapter is for `{}`, which is no folder here", printable(base)),
                          "set base_model_name_or_path to the folder of the model",
                          {(fs::path(folder) / kConfig).string()});
}

void load_adapter(const std::string& folder, const spec::Model& spec, const spec::Lora& lora,
                  const std::vector<nn::DeclaredParameter>& parameters,
                  const std::function<nn::LocalValues(const nn::DeclaredParameter&)>& values_of) {
  const json text = read_json_file(fs::path(folder) / kConfig, 1 << 20);
  check_config(config_of(folder, text), lora);
  const std::string file = (fs::path(folder) / kWeights).string();
  const auto files = checkpoint::WeightFiles::open(file);
  const std::map<std::string, std::string> names = match(files, spec, lora, file);
  const torch::NoGradGuard no_grad;
  for (const nn::DeclaredParameter& parameter : parameters) {
    const auto theirs = names.find(parameter.name);
    if (theirs == names.end()) continue;
    const nn::LocalValues local = values_of(parameter);
    if (local.values.defined() && local.values.numel() > 0) fill(local, parameter.placement, files, theirs->second);
  }
}

void export_adapter(const parallel::TensorMap& weights, const spec::Model& spec, const spec::Lora& lora,
                    const std::string& base, const std::string& folder) {
  checkpoint::TensorMap tensors;
  nn::TensorSizes adapters;
  for (const auto& [name, tensor] : weights) {
    if (!nn::is_lora_name(name) && !is_head(name)) continue;
    adapters[name] = tensor.sizes().vec();
    tensors[peft_name(name, spec)] = tensor.detach().to(torch::kCPU).contiguous();
  }
  const json config = adapter_config(adapters, spec, lora, base);
  make_folders(folder);
  checkpoint::write_safetensors(fs::path(folder) / kWeights, tensors, {{"format", "pt"}});
  checkpoint::write_durable_file(fs::path(folder) / kConfig, config.dump(2) + "\n");
}

}  // namespace lockstep::engine
