#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/spec/hf_config.h"
#include "lockstep/spec/hf_write.h"

namespace lockstep::spec {
namespace {

using nlohmann::json;

void require(bool condition, const Model& model, const char* problem) {
  if (condition) return;
  throw bad_input(fmt::format("model `{}` cannot be exported: {}", printable(model.name), problem),
                  "keep it as a checkpoint, or change the model");
}

// transformers' GPT-2 and BERT have one kind of heads.
void require_plain_heads(const Model& model) {
  require(model.kv_heads == model.heads && model.head_dim * model.heads == model.hidden, model,
          "this architecture of Hugging Face has no kv_heads and no head_dim of its own");
}

using hf::activation_name;

json gpt2(const Model& model) {
  require_plain_heads(model);
  require(model.bias, model, "GPT-2 of Hugging Face has biases");
  json config = {
      {"model_type", "gpt2"},
      {"architectures", json::array({model.classes > 0 ? "GPT2ForSequenceClassification" : "GPT2LMHeadModel"})},
      {"n_layer", model.layers},
      {"n_embd", model.hidden},
      {"n_head", model.heads},
      {"n_inner", model.ffn_hidden == 4 * model.hidden ? json(nullptr) : json(model.ffn_hidden)},
      {"n_positions", model.max_sequence},
      {"activation_function", activation_name(model.activation)},
      {"layer_norm_epsilon", model.norm_epsilon},
      {"resid_pdrop", model.dropout},
      {"embd_pdrop", model.dropout},
      {"attn_pdrop", model.dropout}};
  // If absent they are the last token of GPT-2's own vocabulary.
  constexpr std::int64_t kEndOfText = 50256;
  if (model.vocab <= kEndOfText) config["bos_token_id"] = config["eos_token_id"] = nullptr;
  return config;
}

json mixtral(const Model& model) {
  require(!model.bias, model, "Mixtral has no biases");
  require(model.shared_experts == 0, model, "Mixtral has no shared experts");
  json config = hf::decoder_sizes(model);
  Decoder windows;  // all that Mixtral has beside Llama's blocks
  windows.sliding_window = model.decoder.sliding_window;
  require(model.decoder == windows, model, "Mixtral has no such layers; windows aside, they are Llama's");
  config["model_type"] = "mixtral";
  config["architectures"] =
      json::array({model.classes > 0 ? "MixtralForSequenceClassification" : "MixtralForCausalLM"});
  config["num_local_experts"] = model.experts;
  config["num_experts_per_tok"] = model.experts_per_token;
  config["sliding_window"] = model.decoder.sliding_window > 0 ? json(model.decoder.sliding_window) : json(nullptr);
  hf::add_balancing(model, config);
  if (model.router_z_loss > 0) config["router_z_loss_coef"] = model.router_z_loss;
  if (model.capacity_factor > 0) config["expert_capacity_factor"] = model.capacity_factor;
  return config;
}

json bert(const Model& model) {
  require_plain_heads(model);
  require(model.bias, model, "BERT of Hugging Face has biases");
  require(model.type_vocab > 0, model, "BERT of Hugging Face has at least one token type");
  json config = {{"num_hidden_layers", model.layers},
                 {"hidden_size", model.hidden},
                 {"num_attention_heads", model.heads},
                 {"intermediate_size", model.ffn_hidden},
                 {"max_position_embeddings", model.max_sequence},
                 {"hidden_act", activation_name(model.activation)}};
  config["model_type"] = "bert";
  config["architectures"] = json::array({model.classes > 0 ? "BertForSequenceClassification" : "BertForMaskedLM"});
  config["type_vocab_size"] = model.type_vocab;
  config["layer_norm_eps"] = model.norm_epsilon;
  config["hidden_dropout_prob"] = config["attention_probs_dropout_prob"] = model.dropout;
  config["position_embedding_type"] = "absolute";
  return config;
}

json mamba(const Model& model) {
  require(model.classes == 0, model, "Hugging Face has no classifier on Mamba");
  require(model.dropout == 0, model, "Mamba of Hugging Face has no dropout");
  return {{"model_type", "mamba"},
          {"architectures", json::array({"MambaForCausalLM"})},
          {"num_hidden_layers", model.layers},
          {"hidden_size", model.hidden},
          {"intermediate_size", model.expand * model.hidden},
          {"max_position_embeddings", model.max_sequence},  // Mamba has no limit; kept for our own reader
          {"state_size", model.state_size},
          {"conv_kernel", model.conv_kernel},
          {"expand", model.expand},
          {"time_step_rank", model.dt_rank},
          {"use_bias", model.bias},
          {"use_conv_bias", true},
          {"hidden_act", activation_name(model.activation)},
          {"layer_norm_epsilon", model.norm_epsilon}};
}

json config_of(const Model& model) {
  switch (model.arch) {
    case Arch::kGpt:
      return gpt2(model);
    case Arch::kLlama:
      return hf::decoder_config(model);
    case Arch::kMoe:
      return model.decoder.family == Family::kLlama ? mixtral(model) : hf::decoder_config(model);
    case Arch::kBert:
      return bert(model);
    case Arch::kMamba:
      return mamba(model);
    case Arch::kMnistCnn:
    case Arch::kCifarCnn:
    case Arch::kResNet:
    case Arch::kTorchScript:
    case Arch::kPlugin:
      break;
  }
  // transformers has no such class; torchvision loads the weights, and we read the model back.
  return {{"model_type", "lockstep"}, {"lockstep_model", to_yaml(model)}};
}

// The first line of `model` that a file does not bring back.
std::string first_lost(const Model& model, const Model& read) {
  const std::string text = to_yaml(model), other = to_yaml(read);
  for (const std::string_view line : split(text, '\n')) {
    if (other.find(line) == std::string::npos) return std::string(line);
  }
  return "a setting that it has and the model does not";
}

// A class has only some of the settings of our blocks: the file is read again, and must give the same model.
void require_expressible(const Model& model, const json& config) {
  Model read = parse_hf_config(config.dump(), "config.json");
  read.name = model.name;
  read.global_batch_tokens = model.global_batch_tokens;
  if (read == model) return;
  const std::string type = config.at("model_type");
  const std::string problem =
      fmt::format("`{}` of Hugging Face does not compute it ({})", type, first_lost(model, read));
  require(false, model, problem.c_str());
}

}  // namespace

const char* hf::activation_name(Activation activation) {
  return activation == Activation::kGeluTanh ? "gelu_new" : to_string(activation);
}

json to_hf_config(const Model& model) {
  json config = config_of(model);
  if (model.is_image_model()) return config;
  config["vocab_size"] = model.vocab;
  config["tie_word_embeddings"] = model.tied_embeddings;
  config["initializer_range"] = model.init_std;
  if (model.classes > 0) {
    require(model.classes > 1, model, "one class alone is a regression to Hugging Face");
    for (std::int64_t label = 0; label < model.classes; ++label) {
      const std::string name = fmt::format("LABEL_{}", label);
      config["id2label"][std::to_string(label)] = name;
      config["label2id"][name] = label;
    }
    config["problem_type"] = "single_label_classification";
  }
  if (has_decoder(model) && config["model_type"] != "mixtral") require_expressible(model, config);
  return config;
}

}  // namespace lockstep::spec
