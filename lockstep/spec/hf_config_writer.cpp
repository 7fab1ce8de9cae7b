#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/spec/hf_config.h"

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

const char* activation_name(Activation activation) {
  return activation == Activation::kGeluTanh ? "gelu_new" : to_string(activation);
}

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

json rope_scaling(const RopeScaling& rope) {
  if (rope.kind == RopeScaling::Kind::kLinear) return {{"rope_type", "linear"}, {"factor", rope.factor}};
  return {{"rope_type", "llama3"},
          {"factor", rope.factor},
          {"low_freq_factor", rope.low_freq_factor},
          {"high_freq_factor", rope.high_freq_factor},
          {"original_max_position_embeddings", rope.original_max_sequence}};
}

void add_rope(const Model& model, json& config) {
  json scaling = nullptr;
  if (model.rope_scaling.kind != RopeScaling::Kind::kNone) scaling = rope_scaling(model.rope_scaling);
  // transformers 5 reads rope_parameters, version 4 the other two keys.
  json parameters = scaling.is_null() ? json{{"rope_type", "default"}} : scaling;
  parameters["rope_theta"] = model.rope_theta;
  config["rope_parameters"] = parameters;
  config["rope_theta"] = model.rope_theta;
  config["rope_scaling"] = scaling;
}

// What Llama, Mixtral and BERT call alike.
json usual_sizes(const Model& model) {
  return {{"num_hidden_layers", model.layers},
          {"hidden_size", model.hidden},
          {"num_attention_heads", model.heads},
          {"intermediate_size", model.ffn_hidden},
          {"max_position_embeddings", model.max_sequence},
          {"hidden_act", activation_name(model.activation)}};
}

json llama_like(const Model& model) {
  json config = usual_sizes(model);
  config["num_key_value_heads"] = model.kv_heads;
  config["head_dim"] = model.head_dim;
  config["rms_norm_eps"] = model.norm_epsilon;
  config["attention_dropout"] = model.dropout;
  add_rope(model, config);
  return config;
}

json llama(const Model& model) {
  json config = llama_like(model);
  config["model_type"] = "llama";
  config["architectures"] = json::array({model.classes > 0 ? "LlamaForSequenceClassification" : "LlamaForCausalLM"});
  config["attention_bias"] = config["mlp_bias"] = model.bias;
  return config;
}

json mixtral(const Model& model) {
  require(!model.bias, model, "Mixtral has no biases");
  require(model.shared_experts == 0, model, "Mixtral has no shared experts");
  json config = llama_like(model);
  config["model_type"] = "mixtral";
  config["architectures"] =
      json::array({model.classes > 0 ? "MixtralForSequenceClassification" : "MixtralForCausalLM"});
  config["num_local_experts"] = model.experts;
  config["num_experts_per_tok"] = model.experts_per_token;
  config["sliding_window"] = nullptr;
  config["router_aux_loss_coef"] =
      model.router_auxiliary_loss * static_cast<double>(model.layers) / static_cast<double>(model.experts_per_token);
  config["output_router_logits"] = model.router_auxiliary_loss > 0;
  if (model.router_z_loss > 0) config["router_z_loss_coef"] = model.router_z_loss;
  if (model.capacity_factor > 0) config["expert_capacity_factor"] = model.capacity_factor;
  return config;
}

json bert(const Model& model) {
  require_plain_heads(model);
  require(model.bias, model, "BERT of Hugging Face has biases");
  require(model.type_vocab > 0, model, "BERT of Hugging Face has at least one token type");
  json config = usual_sizes(model);
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
      return llama(model);
    case Arch::kMoe:
      return mixtral(model);
    case Arch::kBert:
      return bert(model);
    case Arch::kMamba:
      return mamba(model);
    case Arch::kMnistCnn:
    case Arch::kCifarCnn:
    case Arch::kResNet:
    case Arch::kTorchScript:
      break;
  }
  require(false, model, "image models cannot be exported to a Hugging Face folder");
  return {};
}

}  // namespace

json to_hf_config(const Model& model) {
  json config = config_of(model);
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
  return config;
}

}  // namespace lockstep::spec
