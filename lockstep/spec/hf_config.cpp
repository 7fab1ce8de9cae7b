#include "lockstep/spec/hf_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/json.h"
#include "lockstep/base/text.h"
#include "lockstep/base/yaml.h"
#include "lockstep/spec/hf_read.h"
#include "lockstep/spec/model_reader.h"
#include "lockstep/spec/parameter_count.h"

namespace lockstep::spec {
namespace {

namespace fs = std::filesystem;
using namespace hf;

bool has_classifier(const JsonReader& config) {
  if (!config.has("architectures")) return false;
  const nlohmann::json& names = config.array("architectures");
  return std::any_of(names.begin(), names.end(), [](const nlohmann::json& name) {
    return name.is_string() && name.get<std::string>().ends_with("ForSequenceClassification");
  });
}

// Of a classifier; transformers omits two labels, its default, from the file.
std::int64_t classes_of(const JsonReader& config) {
  std::int64_t classes = config.integer_or("num_labels", 2, 1, 1 << 24);
  if (const auto labels = config.object_or_none("id2label")) {
    classes = static_cast<std::int64_t>(labels->value().size());
  }
  const std::string usual = "single_label_classification";
  if (config.text("problem_type", usual) != usual || classes < 2) {
    config.fail(config.has("problem_type") ? "problem_type" : "id2label", "asks for regression or for many labels each",
                "supported: one of two or more classes");
  }
  return classes;
}

// Of architectures with one kind of heads that divide the hidden size.
Model with_plain_heads(const JsonReader& config, Arch arch, const char* layers, const char* hidden, const char* heads) {
  Model model;
  model.arch = arch;
  model.layers = width(config, layers, 10'000);
  model.hidden = width(config, hidden);
  model.heads = model.kv_heads = width(config, heads);
  check_heads(config, model, heads, false);
  model.head_dim = model.hidden / model.heads;
  return model;
}

Model gpt2(const JsonReader& config) {
  Model model = with_plain_heads(config, Arch::kGpt, "n_layer", "n_embd", "n_head");
  model.ffn_hidden = config.integer_or("n_inner", 4 * model.hidden, 1, kWidest);
  model.vocab = width(config, "vocab_size", 1 << 28);
  model.max_sequence = config.integer_or("n_positions", 1024, 1, std::int64_t{1} << 40);
  model.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
  model.activation = activation_of(config, "activation_function", "gelu_new");
  model.norm_epsilon = norm_epsilon_of(config, "layer_norm_epsilon", 1e-5);
  model.dropout = dropout_of(config, {"resid_pdrop", "embd_pdrop", "attn_pdrop"}, 0.1);
  refuse_true(config, {"scale_attn_by_inverse_layer_idx", "reorder_and_upcast_attn", "add_cross_attention"});
  if (!config.boolean_or("scale_attn_weights", true)) config.fail("scale_attn_weights", "is false", "not supported");
  return model;
}

Model mixtral(const JsonReader& config) {
  Model model = mixtral_sizes(config);
  model.experts = width(config, "num_local_experts");
  model.experts_per_token = config.integer("num_experts_per_tok", 1, model.experts);
  model.router_auxiliary_loss = balancing_of(config, model);
  if (config.real_or("router_jitter_noise", 0.0) != 0.0) {
    config.fail("router_jitter_noise", "is not 0", "not supported");
  }
  // Keys of ours (to_hf_config).
  model.router_z_loss = real_between(config, "router_z_loss_coef", 0.0, 0.0, 1e3);
  model.capacity_factor = real_between(config, "expert_capacity_factor", 0.0, 0.0, 1e6);
  return model;
}

Model bert(const JsonReader& config) {
  Model model = with_plain_heads(config, Arch::kBert, "num_hidden_layers", "hidden_size", "num_attention_heads");
  model.ffn_hidden = width(config, "intermediate_size");
  model.vocab = width(config, "vocab_size", 1 << 28);
  model.max_sequence = config.integer_or("max_position_embeddings", 512, 1, std::int64_t{1} << 40);
  model.type_vocab = config.integer_or("type_vocab_size", 2, 0, 1 << 20);
  model.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
  model.activation = activation_of(config, "hidden_act", "gelu");
  model.norm_epsilon = norm_epsilon_of(config, "layer_norm_eps", 1e-12);
  model.dropout = dropout_of(config, {"hidden_dropout_prob", "attention_probs_dropout_prob"}, 0.1);
  const std::string positions = config.text("position_embedding_type", "absolute");
  if (positions != "absolute") config.fail("position_embedding_type", "is not `absolute`", "not supported");
  refuse_true(config, {"is_decoder", "add_cross_attention"});
  if (has_classifier(config) && config.real_or("classifier_dropout", model.dropout) != model.dropout) {
    config.fail("classifier_dropout", "differs from hidden_dropout_prob", "set both to the same value");
  }
  return model;
}

Model mamba(const JsonReader& config) {
  Model model;
  model.arch = Arch::kMamba;
  model.activation = activation_of(config, "hidden_act", "silu");
  model.layers = width(config, "num_hidden_layers", 10'000);
  model.hidden = width(config, "hidden_size");
  model.vocab = width(config, "vocab_size", 1 << 28);
  model.max_sequence = config.integer_or("max_position_embeddings", 2048, 1);  // Mamba has no limit of its own
  model.state_size = config.integer_or("state_size", 16, 1, kWidest);
  model.conv_kernel = config.integer_or("conv_kernel", 4, 1, 1024);
  model.expand = config.integer_or("expand", 2, 1, 64);
  const bool rank_given = config.has("time_step_rank") && config.value().at("time_step_rank").is_number();
  model.dt_rank = rank_given ? width(config, "time_step_rank") : (model.hidden + 15) / 16;
  if (config.integer_or("intermediate_size", model.expand * model.hidden) != model.expand * model.hidden) {
    config.fail("intermediate_size", "is not expand x hidden_size", "not supported");
  }
  model.bias = config.boolean_or("use_bias", false);
  if (!config.boolean_or("use_conv_bias", true)) config.fail("use_conv_bias", "is false", "not supported");
  model.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
  model.norm_epsilon = norm_epsilon_of(config, "layer_norm_epsilon", 1e-5);
  return model;
}

// What to_hf_config() writes for image models: no class of transformers is meant.
Model own_model(const JsonReader& config, const fs::path& file) {
  const YamlNode tree = parse_yaml(config.text("lockstep_model"), file.string());
  if (!tree.is_map() || tree.find("preset") != nullptr) {
    config.fail("lockstep_model", "is not a model with `arch`", "export it again");
  }
  return read_model(tree, "lockstep_model", "inline");
}

}  // namespace

std::vector<std::string> hf_model_types() {
  std::vector<std::string> types{"gpt2", "bert", "mamba", "mixtral"};
  for (const Reader& reader : decoder_readers()) types.emplace_back(reader.type);
  return types;
}

Model read_hf_config(const std::string& path) {
  fs::path file(path);
  std::error_code ignored;
  if (fs::is_directory(file, ignored)) file /= "config.json";
  if (!fs::exists(file, ignored)) {
    throw environment_error(fmt::format("{} does not exist", printable_path(file)),
                            "a model folder needs the config.json of Hugging Face");
  }
  return parse_hf_config(read_file(file, 1 << 20), file);
}

Model parse_hf_config(std::string_view text, const fs::path& file) {
  const nlohmann::json json = parse_json(text, file.string());
  const JsonReader config(json, file.string());
  const std::string type = config.text("model_type");
  Model model;
  if (type == "lockstep") return own_model(config, file);
  if (type == "gpt2") {
    model = gpt2(config);
  } else if (type == "mixtral") {
    model = mixtral(config);
  } else if (type == "bert") {
    model = bert(config);
  } else if (type == "mamba") {
    model = mamba(config);
  } else {
    model = read_decoder_config(config, type);
  }
  // For a plan it does not matter how weights were published.
  if (config.has("quantization_config") && why_only_planned(model).empty()) {
    config.fail("quantization_config", "is there",
                "quantized weights are not supported; take the folder they came from");
  }
  if (has_classifier(config)) model.classes = classes_of(config);
  model.init_std = real_between(config, "initializer_range", 0.02, 0.0, 10.0);
  const fs::path absolute = fs::absolute(file).lexically_normal();
  const std::filesystem::path name = file.filename() == "config.json" ? absolute.parent_path().filename() : file.stem();
  model.name = printable(name.string(), kLongestName);
  if (parameter_count_estimate(model) > 1e16)
    config.fail("hidden_size", "makes a model too large to count", "check it");
  return model;
}

}  // namespace lockstep::spec
