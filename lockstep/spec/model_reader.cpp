#include "lockstep/spec/model_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <span>

#include "lockstep/base/file.h"
#include "lockstep/base/map_reader.h"
#include "lockstep/base/text.h"
#include "lockstep/spec/hf_config.h"
#include "lockstep/spec/parameter_count.h"
#include "lockstep/spec/presets.h"

namespace lockstep::spec {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostLayers = 10'000;
constexpr std::int64_t kWidest = 1 << 22;
constexpr double kMostParameters = 1e16;  // far beyond any model, far below 2^63

void take_images(Model& model, std::int64_t size, std::int64_t channels, std::int64_t classes) {
  model.image_size = size;
  model.image_channels = channels;
  model.classes = classes;
}

// The default of an absent field depends on the architecture; these are the published conventions.
Model defaults_of(Arch arch) {
  Model model;
  model.arch = arch;
  switch (arch) {
    case Arch::kMnistCnn:
      take_images(model, 28, 1, 10);
      break;
    case Arch::kCifarCnn:
      take_images(model, 32, 3, 10);
      break;
    case Arch::kResNet:
      take_images(model, 224, 3, 1000);
      break;
    case Arch::kBert:
      model.activation = Activation::kGelu;
      model.norm_epsilon = 1e-12;
      model.tied_embeddings = true;
      model.type_vocab = 2;
      break;
    case Arch::kTorchScript:
    case Arch::kPlugin:
      break;
    case Arch::kGpt:
      model.tied_embeddings = true;
      break;
    case Arch::kLlama:
    case Arch::kMoe:
      model.activation = Activation::kSilu;
      model.bias = false;
      break;
    case Arch::kMamba:
      model.activation = Activation::kSilu;
      model.bias = false;
      model.tied_embeddings = true;
      model.state_size = 16;
      model.conv_kernel = 4;
      model.expand = 2;
      break;
  }
  return model;
}

void check_rope_scaling(const MapReader& map, const RopeScaling& rope, std::size_t pairs) {
  const bool has_context = rope.kind != RopeScaling::Kind::kNone && rope.kind != RopeScaling::Kind::kLinear;
  if (has_context && rope.original_max_sequence < 2) {
    throw map.error_at("original_max_sequence", fmt::format("{} needs original_max_sequence", to_string(rope.kind)),
                       "give the context the model was first trained with");
  }
  if (rope.kind != RopeScaling::Kind::kLongRope) {
    if (rope.factor >= 1.0) return;
    throw map.error_at("factor", fmt::format("a factor of {}", rope.factor), "1 or more");
  }
  for (const auto* factors : {&rope.short_factors, &rope.long_factors}) {
    if (factors->size() == pairs) continue;
    throw map.error_at("kind", fmt::format("longrope needs {} short_factors and as many long_factors", pairs),
                       "one for every pair of rotated elements of a head");
  }
}

void read_rope_scaling(MapReader& reader, Model& model) {
  auto map = reader.map("rope_scaling");
  if (!map) return;
  RopeScaling& rope = model.rope_scaling;
  map->choice("kind", rope.kind);
  map->real("factor", rope.factor, 0.0, 1e6);
  map->real("low_freq_factor", rope.low_freq_factor, 1e-6, 1e6);
  map->real("high_freq_factor", rope.high_freq_factor, 1e-6, 1e6);
  map->count("original_max_sequence", rope.original_max_sequence);
  map->real("beta_fast", rope.beta_fast, 1e-6, 1e6);
  map->real("beta_slow", rope.beta_slow, 1e-6, 1e6);
  map->boolean("truncate", rope.truncate);
  map->real("attention_factor", rope.attention_factor, 0.0, 1e3);
  const auto pairs = static_cast<std::size_t>(model.heads > 0 ? rotary_dim(model) / 2 : 0);
  map->reals("short_factors", rope.short_factors, 1e-6, 1e6, pairs);
  map->reals("long_factors", rope.long_factors, 1e-6, 1e6, pairs);
  map->require("kind");
  map->finish();
  check_rope_scaling(*map, rope, pairs);
}

void read_attention(MapReader& reader, Model& model) {
  reader.require("heads");
  reader.count("heads", model.heads, 1, kWidest);
  model.kv_heads = model.heads;
  reader.count("kv_heads", model.kv_heads, 1, kWidest);
  const bool has_head_dim = reader.count("head_dim", model.head_dim, 1, kWidest);
  if (model.heads == 0 || model.hidden == 0) return;  // finish() will say what is missing
  if (!has_head_dim && model.hidden % model.heads != 0) {
    throw reader.error_at("heads", fmt::format("hidden {} is not a multiple of heads {}", model.hidden, model.heads),
                          "change one of them or give head_dim");
  }
  if (!has_head_dim) model.head_dim = model.hidden / model.heads;
  if (model.heads % model.kv_heads != 0) {
    throw reader.error_at("kv_heads", fmt::format("kv_heads {} does not divide heads {}", model.kv_heads, model.heads),
                          "each key-value head serves the same number of heads");
  }
}

void read_feed_forward(MapReader& reader, Model& model) {
  if (model.arch == Arch::kGpt || model.arch == Arch::kBert) {
    model.ffn_hidden = 4 * model.hidden;
  } else {
    reader.require("ffn_hidden");
  }
  reader.count("ffn_hidden", model.ffn_hidden, 1, kWidest);
  if (model.arch != Arch::kMoe) return;
  reader.require("experts");
  reader.require("experts_per_token");
  reader.count("experts", model.experts, 1, kWidest);
  reader.count("experts_per_token", model.experts_per_token, 1, kWidest);
  reader.count("shared_experts", model.shared_experts, 0, kWidest);
  reader.real("router_auxiliary_loss", model.router_auxiliary_loss, 0.0, 1e3);
  reader.real("router_z_loss", model.router_z_loss, 0.0, 1e3);
  reader.real("capacity_factor", model.capacity_factor, 0.0, 1e6);
  if (model.experts > 0 && model.experts_per_token > model.experts) {
    throw reader.error_at(
        "experts_per_token",
        fmt::format("experts_per_token {} is more than experts {}", model.experts_per_token, model.experts),
        "choose at most as many as there are");
  }
}

void read_state_space(MapReader& reader, Model& model) {
  reader.count("state_size", model.state_size, 1, kWidest);
  reader.count("conv_kernel", model.conv_kernel, 1, 1024);
  reader.count("expand", model.expand, 1, 64);
  model.dt_rank = (model.hidden + 15) / 16;
  reader.count("dt_rank", model.dt_rank, 1, kWidest);
}

void read_family(MapReader& reader, Model& model) {
  Family family = Family::kLlama;
  if (!reader.choice("family", family) || family == Family::kLlama) return;
  const bool routed = family == Family::kDeepseek, either = family == Family::kQwen3;
  if (!either && routed != (model.arch == Arch::kMoe)) {
    throw reader.error_at("family", fmt::format("family {} is of arch {}", to_string(family), routed ? "moe" : "llama"),
                          "change one of them");
  }
  adopt_family(model, family);
}

void read_language_model(MapReader& reader, Model& model) {
  if (has_decoder(model)) read_family(reader, model);
  for (const char* key : {"layers", "hidden", "vocab", "max_sequence"}) reader.require(key);
  reader.count("layers", model.layers, 1, kMostLayers);
  reader.count("hidden", model.hidden, 1, kWidest);
  reader.count("vocab", model.vocab, 1, 1 << 28);
  reader.count("max_sequence", model.max_sequence, 1, std::int64_t{1} << 40);
  reader.boolean("tied_embeddings", model.tied_embeddings);
  reader.boolean("bias", model.bias);
  reader.choice("activation", model.activation);
  reader.real("norm_epsilon", model.norm_epsilon, 0.0, 1.0);
  reader.real("init_std", model.init_std, 0.0, 10.0);
  reader.count("global_batch_tokens", model.global_batch_tokens);
  reader.count("classes", model.classes, 0, 1 << 24);
  if (model.arch == Arch::kMamba) {
    read_state_space(reader, model);
    return;
  }
  read_attention(reader, model);
  read_feed_forward(reader, model);
  if (has_decoder(model)) {
    reader.real("rope_theta", model.rope_theta, 1.0, 1e12);
    read_decoder(reader, model);
    read_rope_scaling(reader, model);
  }
  if (model.arch == Arch::kBert) reader.count("type_vocab", model.type_vocab, 0, 1 << 20);
}

void read_image_model(MapReader& reader, Model& model) {
  reader.count("image_size", model.image_size, 8, 1 << 14);
  reader.count("image_channels", model.image_channels, 1, 1024);
  reader.count("classes", model.classes, 1, 1 << 24);
  if (model.arch != Arch::kResNet) return;
  reader.require("stage_blocks");
  reader.counts("stage_blocks", model.stage_blocks, 1);
  reader.boolean("bottleneck", model.bottleneck);
  const bool has_blocks = !model.stage_blocks.empty() || reader.node().find("stage_blocks") != nullptr;
  if (!has_blocks) return;
  if (model.stage_blocks.size() != 4) {
    throw reader.error_at("stage_blocks", "stage_blocks needs 4 entries", "for example [3, 4, 6, 3]");
  }
  for (const std::int64_t blocks : model.stage_blocks) {
    if (blocks > 1000) throw reader.error_at("stage_blocks", "a stage of more than 1000 blocks", "use fewer");
  }
}

// A loss of ours, or one that the section's plugin registered.
void read_loss(MapReader& reader, const PluginUse& plugin, Script& script) {
  const YamlNode* const options = reader.find("loss_options");
  std::string name;
  const bool given = reader.text("loss", name);
  const auto known = value_named<ScriptLoss>(name);
  if (known && (*known != ScriptLoss::kOwn || script.plugin.used())) {
    script.loss = *known;
  } else if (given && plugin.used()) {
    script.loss = ScriptLoss::kOwn;
    script.own_loss = named_in(plugin, name);
    if (options != nullptr) {
      if (!options->is_map()) throw reader.error_at("loss_options", "loss_options is not a map", "{gamma: 2}");
      script.own_loss.options = *options;
    }
    check_plugin_name(reader, "loss", PluginKind::kLoss, script.own_loss);
  } else if (given) {
    constexpr auto kNames = names_of(ScriptLoss{});
    reader.word("loss", name, std::span(kNames).first(kNames.size() - 1));
  }
  if (options == nullptr || script.own_loss.used()) return;
  throw reader.error_at("loss_options", "loss_options are for a loss that a plugin registered", "remove them");
}

void read_facts(MapReader& reader, Script& script) {
  std::string facts;
  if (reader.node().find("facts") == nullptr) return;  // ours: nobody is offered it
  if (reader.text("facts", facts)) script.facts = script_facts(facts, reader.full_key("facts"));
}

// What is not ours belongs to the model, which is asked later (engine/probe.h).
Model read_plugin_model(const YamlNode& node, const std::string& path) {
  MapReader reader(node, path);
  Model model = defaults_of(Arch::kPlugin);
  Script& script = model.script;
  script.loss = ScriptLoss::kOwn;
  read_plugin_file(reader, script.plugin);
  if (!reader.text("arch", script.plugin.name)) {
    throw reader.error_at("plugin", "the model names a plugin and no `arch`",
                          "add arch: NAME, as the plugin registers it");
  }
  check_plugin_name(reader, "arch", PluginKind::kModel, script.plugin);
  model.name = printable(script.plugin.name, kLongestName);
  reader.name("name", model.name);
  read_loss(reader, script.plugin, script);
  read_facts(reader, script);
  take_plugin_options(node, {"arch", "name", "loss", "loss_options", "facts"}, script.plugin);
  return model;
}

// What a folder of pictures is made into; other data says itself what it is like.
void read_pictures(MapReader& reader, Model& model) {
  if (!reader.count("image_size", model.image_size, 1, 1 << 14)) return;
  model.image_channels = 3;
  reader.count("image_channels", model.image_channels, 1, 1024);
  reader.require("classes");
  reader.count("classes", model.classes, 1, 1 << 24);
}

// `digest` and `facts` are ours: a user leaves them out, and the file is looked at.
Model read_script(const YamlNode& node, const std::string& path) {
  MapReader reader(node, path);
  Model model = defaults_of(Arch::kTorchScript);
  Script& script = model.script;
  reader.path("torchscript", script.path);
  model.name = printable(fs::path(script.path).stem().string(), kLongestName);
  reader.name("name", model.name);
  reader.require("loss");
  PluginUse plugin;  // of the loss
  read_plugin_file(reader, plugin);
  plugin.options.kind = YamlNode::Kind::kMap;
  read_loss(reader, plugin, script);
  read_pictures(reader, model);
  const bool has_digest = node.find("digest") != nullptr && reader.text("digest", script.digest);
  read_facts(reader, script);
  reader.finish();
  if (plugin.used() && !script.own_loss.used()) {
    throw reader.error_at("plugin", "a module from Python takes its loss from a plugin, and this loss is not in it",
                          "remove plugin, or name a loss that it registers");
  }
  if (!has_digest && !fs::exists(script.path)) {
    throw environment_error("no such file: " + printable_path(script.path),
                            "save one with torch.jit.script(model).save(FILE), or check the path",
                            node.find("torchscript")->place());
  }
  if (!has_digest) script.digest = script_digest(script.path);
  return model;
}

Model read_map(const YamlNode& node, const std::string& path, const std::string& default_name) {
  if (node.find("torchscript") != nullptr) return read_script(node, path);
  if (node.find("plugin") != nullptr) return read_plugin_model(node, path);
  MapReader reader(node, path);
  Arch arch = Arch::kGpt;
  reader.require("arch");
  const bool has_arch = reader.choice("arch", arch);
  if (arch == Arch::kTorchScript) {
    throw reader.error_at("arch", "a module from Python is named by its file",
                          "write {torchscript: FILE, loss: cross_entropy} instead of arch");
  }
  if (arch == Arch::kPlugin) {
    throw reader.error_at("arch", "a plugin's model is named by its file and its own name",
                          "write {plugin: FILE.so, arch: NAME}");
  }
  Model model = defaults_of(arch);
  model.name = printable(default_name, kLongestName);
  reader.name("name", model.name);
  reader.real("dropout", model.dropout, 0.0, 0.999999);
  model.is_language_model() ? read_language_model(reader, model) : read_image_model(reader, model);
  if (!has_arch) {
    reader.find("preset");  // known here, so that a misspelt `preset` is reported
    // Without an architecture the other keys cannot be checked; only say what is missing, unless `arch` was misspelt.
    for (const YamlNode::Entry& entry : node.entries) {
      if (const auto near = nearest(entry.key, {"arch", "preset"})) {
        throw bad_input(fmt::format("unknown key `{}` in a model", printable(entry.key)),
                        fmt::format("did you mean `{}`?", *near), entry.key_place);
      }
    }
    throw bad_input("the model has neither `arch` nor `preset`", "add one, for example `preset: gpt2-124m`",
                    node.place());
  }
  reader.finish();
  if (parameter_count_estimate(model) > kMostParameters) {
    throw bad_input(fmt::format("a model of {:.3g} parameters", parameter_count_estimate(model)),
                    "check layers, hidden, ffn_hidden, vocab and experts", node.place());
  }
  return model;
}

// The smaller first: a family's name alone (`gpt2`) means its smallest, as it does at Hugging Face.
std::vector<std::string> names_by_size() {
  std::vector<std::pair<std::int64_t, std::string>> sized;
  for (const std::string& name : embedded_names(embedded_models())) {
    sized.emplace_back(parameter_count(load_model(name)), name);
  }
  std::sort(sized.begin(), sized.end());
  std::vector<std::string> names;
  names.reserve(sized.size());
  for (auto& [size, name] : sized) names.push_back(std::move(name));
  return names;
}

YamlNode preset_tree(const std::string& name, const SourcePlace& place) {
  const EmbeddedSpec* preset = find_embedded(embedded_models(), name);
  if (preset == nullptr) {
    throw bad_input(fmt::format("there is no model preset `{}`", printable(name)), did_you_mean(name, names_by_size()),
                    place);
  }
  return parse_yaml(preset->text, fmt::format("specs/models/{}.yaml", name));
}

bool looks_like_file(const std::string& name, const fs::path& resolved) {
  if (name.find('/') != std::string::npos || name == "." || name == "..") return true;
  const std::string extension = fs::path(name).extension().string();
  if (extension == ".yaml" || extension == ".yml" || extension == ".json") return true;
  std::error_code ignored;
  return fs::exists(resolved, ignored);
}

void require_model_file(const fs::path& path, const SourcePlace& place) {
  std::error_code error;
  if (fs::exists(path, error)) return;
  throw environment_error(fmt::format("the model file {} does not exist", printable_path(path)),
                          "check the path, or use a preset such as gpt2-124m", place);
}

bool is_hugging_face(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error) || path.extension() == ".json";
}

// What `preset: NAME` starts from, as the map that a file of it would hold: an embedded preset, a Hugging Face folder
// or config.json, or a model file.
YamlNode base_tree(const YamlNode& preset) {
  const std::string& name = preset.scalar;
  const fs::path resolved = preset.source ? preset.source->directory / name : fs::path(name);
  if (find_embedded(embedded_models(), name) != nullptr || !looks_like_file(name, resolved)) {
    return preset_tree(name, preset.place());
  }
  require_model_file(resolved, preset.place());
  if (is_hugging_face(resolved)) return parse_yaml(to_yaml(read_hf_config(resolved.string())), resolved.string());
  YamlNode tree = read_yaml_file(resolved);
  if (!tree.is_map() || tree.find("preset") != nullptr) {
    throw bad_input(fmt::format("{} is not a model with `arch`", printable_path(resolved)),
                    "name a file that has all fields", preset.place());
  }
  return tree;
}

// The preset's map with the given keys put over it, so that what is derived (head_dim, ...) follows the changes.
Model read_changed_preset(const YamlNode& node, const std::string& path) {
  const YamlNode& preset = *node.find("preset");
  if (!preset.is_scalar()) throw bad_input("`preset` is not a name", "for example gpt2-124m", preset.place());
  if (const YamlNode* arch = node.find("arch")) {
    throw bad_input("`arch` cannot be changed in a preset", "omit `arch`, or omit `preset` and write all fields",
                    arch->place());
  }
  YamlNode merged = base_tree(preset);
  for (const YamlNode::Entry& change : node.entries) {
    if (change.key == "preset") continue;
    merged.erase(change.key);
    merged.entries.push_back(change);
  }
  const bool embedded = find_embedded(embedded_models(), preset.scalar) != nullptr;
  return read_map(merged, path, embedded ? preset.scalar : fs::path(preset.scalar).stem().string());
}

Model read_model_file(const fs::path& path, const SourcePlace& place) {
  require_model_file(path, place);
  if (is_hugging_face(path)) return read_hf_config(path.string());
  const YamlNode root = read_yaml_file(path);
  return read_model(root, "", path.stem().string());
}

}  // namespace

Model read_model(const YamlNode& node, const std::string& path, const std::string& default_name) {
  if (node.is_map()) {
    return node.find("preset") != nullptr ? read_changed_preset(node, path) : read_map(node, path, default_name);
  }
  if (!node.is_scalar() || node.scalar.empty()) {
    throw bad_input("a model is a preset, a file, or a map with `arch`", "for example `model: gpt2-124m`",
                    node.place());
  }
  const std::string& name = node.scalar;
  if (find_embedded(embedded_models(), name) != nullptr) {
    const YamlNode tree = preset_tree(name, node.place());
    return read_map(tree, "", name);
  }
  const fs::path resolved = node.source ? node.source->directory / name : fs::path(name);
  if (resolved.extension() == ".pt") {
    throw bad_input(fmt::format("`{}` alone does not say what it is trained for", printable(name)),
                    fmt::format("in a job file write model: {{torchscript: {}, loss: cross_entropy}}", printable(name)),
                    node.place());
  }
  if (looks_like_file(name, resolved)) return read_model_file(resolved, node.place());
  preset_tree(name, node.place());  // throws, with the nearest preset
  throw InternalError("unreachable");
}

Model load_model(const std::string& name) {
  const auto source = std::make_shared<YamlSource>(YamlSource{"", {}});
  return read_model(YamlNode::make_scalar(name, source), "", "inline");
}

std::vector<std::string> model_preset_names() { return embedded_names(embedded_models()); }

}  // namespace lockstep::spec
