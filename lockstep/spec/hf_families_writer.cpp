// config.json of Llama's relatives, as their classes in transformers read it. What a class cannot express is found by
// reading the result back (to_hf_config).
#include <nlohmann/json.hpp>

#include "lockstep/spec/hf_write.h"

namespace lockstep::spec::hf {
namespace {

using nlohmann::json;

json rope_parameters(const Model& model, double theta, const RopeScaling& rope) {
  json parameters = {{"rope_type", "default"}, {"rope_theta", theta}};
  if (model.decoder.rotary_fraction != 1.0 || model.decoder.family == Family::kPhi3) {
    parameters["partial_rotary_factor"] = model.decoder.rotary_fraction;
  }
  if (rope.kind == RopeScaling::Kind::kNone) return parameters;
  parameters["rope_type"] = to_string(rope.kind);
  if (rope.factor > 0) parameters["factor"] = rope.factor;
  if (rope.original_max_sequence > 0) parameters["original_max_position_embeddings"] = rope.original_max_sequence;
  if (rope.attention_factor > 0) parameters["attention_factor"] = rope.attention_factor;
  switch (rope.kind) {
    case RopeScaling::Kind::kLlama3:
      parameters["low_freq_factor"] = rope.low_freq_factor;
      parameters["high_freq_factor"] = rope.high_freq_factor;
      break;
    case RopeScaling::Kind::kYarn:
      if (rope.beta_fast != RopeScaling{}.beta_fast) parameters["beta_fast"] = rope.beta_fast;
      if (rope.beta_slow != RopeScaling{}.beta_slow) parameters["beta_slow"] = rope.beta_slow;
      if (!rope.truncate) parameters["truncate"] = false;
      break;
    case RopeScaling::Kind::kLongRope:
      parameters["short_factor"] = rope.short_factors;
      parameters["long_factor"] = rope.long_factors;
      break;
    case RopeScaling::Kind::kNone:
    case RopeScaling::Kind::kLinear:
      break;
  }
  return parameters;
}

// transformers 5 reads rope_parameters, version 4 the other keys.
void add_rope(const Model& model, json& config) {
  const json parameters = rope_parameters(model, model.rope_theta, model.rope_scaling);
  json scaling = parameters;
  scaling.erase("rope_theta");
  scaling.erase("partial_rotary_factor");
  config["rope_parameters"] = parameters;
  config["rope_theta"] = model.rope_theta;
  config["rope_scaling"] = model.rope_scaling.kind == RopeScaling::Kind::kNone ? json(nullptr) : scaling;
  if (model.decoder.rotary_fraction != 1.0) config["partial_rotary_factor"] = model.decoder.rotary_fraction;
}

void add_windows(const Model& model, json& config) {
  const Decoder& d = model.decoder;
  config["sliding_window"] = d.sliding_window > 0 ? json(d.sliding_window) : json(nullptr);
}

void add_layer_types(const Model& model, json& config) {
  json types = json::array();
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    types.push_back(window_of(model, layer) > 0 ? "sliding_attention" : "full_attention");
  }
  config["layer_types"] = types;
}

void add_qwen(const Model& model, json& config) {
  add_windows(model, config);
  add_layer_types(model, config);
  config["use_sliding_window"] = model.decoder.sliding_window > 0;
  if (model.decoder.sliding_window > 0) config["max_window_layers"] = model.decoder.window_from;
}

void add_gemma(const Model& model, json& config) {
  const Decoder& d = model.decoder;
  const auto cap = [](double value) { return value > 0 ? json(value) : json(nullptr); };
  add_windows(model, config);
  add_layer_types(model, config);
  // transformers has whole numbers here.
  const double scalar = d.score_dim > 0 ? d.score_dim : static_cast<double>(model.head_dim);
  config["query_pre_attn_scalar"] = static_cast<std::int64_t>(scalar);
  config["attn_logit_softcapping"] = cap(d.attention_softcap);
  config["final_logit_softcapping"] = cap(d.logit_softcap);
  config["hidden_activation"] = "gelu_pytorch_tanh";
  config.erase("hidden_act");
}

void add_gemma3(const Model& model, json& config) {
  const Decoder& d = model.decoder;
  add_gemma(model, config);
  const bool same = d.local_rope_theta == 0;
  config["rope_parameters"] = {
      {"full_attention", rope_parameters(model, model.rope_theta, model.rope_scaling)},
      {"sliding_attention", rope_parameters(model, same ? model.rope_theta : d.local_rope_theta, {})}};
  config["rope_local_base_freq"] = same ? model.rope_theta : d.local_rope_theta;
}

void add_neox(const Model& model, json& config) {
  config["layer_norm_eps"] = model.norm_epsilon;
  config["rotary_pct"] = model.decoder.rotary_fraction;
  config["rotary_emb_base"] = model.rope_theta;
  config["use_parallel_residual"] = model.decoder.parallel_block != ParallelBlock::kNone;
  config["attention_bias"] = model.bias;
  config["rope_parameters"]["partial_rotary_factor"] = model.decoder.rotary_fraction;
  // Its class divides the hidden size.
  for (const char* key : {"rms_norm_eps", "head_dim", "num_key_value_heads", "partial_rotary_factor"})
    config.erase(key);
}

void add_falcon(const Model& model, json& config) {
  const Decoder& d = model.decoder;
  const bool parallel = d.parallel_block != ParallelBlock::kNone;
  const bool plain_heads = model.kv_heads == 1 || model.kv_heads == model.heads;
  const bool is_new = d.parallel_block == ParallelBlock::kTwoNorms || !plain_heads;
  config["new_decoder_architecture"] = is_new;
  config["parallel_attn"] = parallel;
  config["multi_query"] = is_new || model.kv_heads == 1;           // the new decoder does not look at it
  config["num_kv_heads"] = is_new ? model.kv_heads : model.heads;  // the old decoder has one or all
  if (is_new) config["num_ln_in_parallel_attn"] = d.parallel_block == ParallelBlock::kTwoNorms ? 2 : 1;
  config["ffn_hidden_size"] = model.ffn_hidden;
  config["activation"] = config["hidden_act"];
  config["bias"] = model.bias;
  config["layer_norm_epsilon"] = model.norm_epsilon;
  config["alibi"] = false;
  config["hidden_dropout"] = 0.0;
  for (const char* key : {"rms_norm_eps", "head_dim", "num_key_value_heads", "intermediate_size", "hidden_act"}) {
    config.erase(key);
  }
}

void add_deepseek(const Model& model, json& config) {
  const Decoder& d = model.decoder;
  config["intermediate_size"] = d.dense_layers > 0 ? d.dense_ffn_hidden : model.ffn_hidden;
  config["moe_intermediate_size"] = model.ffn_hidden;
  config["n_routed_experts"] = model.experts;
  config["num_experts_per_tok"] = model.experts_per_token;
  config["n_shared_experts"] = model.shared_experts > 0 ? json(model.shared_experts) : json(nullptr);
  config["first_k_dense_replace"] = d.dense_layers;
  config["moe_layer_freq"] = 1;
  config["norm_topk_prob"] = d.normalized_routing;
  config["routed_scaling_factor"] = d.routed_scale;
  config["scoring_func"] = "softmax";
  config["aux_loss_alpha"] = model.router_auxiliary_loss;
  config["seq_aux"] = false;
}

void add_qwen3_experts(const Model& model, json& config) {
  const Decoder& d = model.decoder;
  config["intermediate_size"] = d.dense_layers > 0 ? d.dense_ffn_hidden : model.ffn_hidden;
  config["moe_intermediate_size"] = model.ffn_hidden;
  config["num_experts"] = model.experts;
  config["num_experts_per_tok"] = model.experts_per_token;
  config["norm_topk_prob"] = d.normalized_routing;
  config["decoder_sparse_step"] = 1;
  config["mlp_only_layers"] = json::array();
  for (std::int64_t layer = 0; layer < d.dense_layers; ++layer) config["mlp_only_layers"].push_back(layer);
  add_balancing(model, config);
}

void add_family(const Model& model, json& config) {
  const bool attention_bias = model.bias || model.decoder.qkv_bias;
  switch (model.decoder.family) {
    case Family::kLlama:
      config["attention_bias"] = attention_bias;
      config["mlp_bias"] = model.bias;
      break;
    case Family::kMistral:
      add_windows(model, config);
      break;
    case Family::kPhi3:
      add_windows(model, config);
      // If absent it is Phi 3's own, which must be a row of the embedding.
      if (constexpr std::int64_t kPadding = 32'000; model.vocab <= kPadding) config["pad_token_id"] = nullptr;
      if (model.rope_scaling.kind == RopeScaling::Kind::kLongRope) {
        config["original_max_position_embeddings"] = model.rope_scaling.original_max_sequence;
      }
      break;
    case Family::kQwen2:
      add_qwen(model, config);
      break;
    case Family::kQwen3:
      add_qwen(model, config);
      config["attention_bias"] = attention_bias;
      if (model.arch == Arch::kMoe) add_qwen3_experts(model, config);
      break;
    case Family::kGemma2:
      add_gemma(model, config);
      config["attention_bias"] = attention_bias;
      break;
    case Family::kGemma3:
      add_gemma3(model, config);
      config["attention_bias"] = attention_bias;
      break;
    case Family::kOlmo:
      config["attention_bias"] = attention_bias;
      if (model.decoder.clip_qkv > 0) config["clip_qkv"] = model.decoder.clip_qkv;
      config["layer_norm_eps"] = model.norm_epsilon;  // for our own reader: the class has no other
      config.erase("rms_norm_eps");
      break;
    case Family::kOlmo2:
      config["attention_bias"] = attention_bias;
      break;
    case Family::kNeox:
      add_neox(model, config);
      break;
    case Family::kFalcon:
      add_falcon(model, config);
      break;
    case Family::kDeepseek:
      config["attention_bias"] = attention_bias;
      add_deepseek(model, config);
      break;
  }
}

struct ClassName {
  const char* type;
  const char* name;
};

ClassName class_of(const Model& model) {
  switch (model.decoder.family) {
    case Family::kLlama:
      return {"llama", "Llama"};
    case Family::kMistral:
      return {"mistral", "Mistral"};
    case Family::kQwen2:
      return {"qwen2", "Qwen2"};
    case Family::kQwen3:
      return model.arch == Arch::kMoe ? ClassName{"qwen3_moe", "Qwen3Moe"} : ClassName{"qwen3", "Qwen3"};
    case Family::kGemma2:
      return {"gemma2", "Gemma2"};
    case Family::kGemma3:
      return {"gemma3_text", "Gemma3"};
    case Family::kPhi3:
      return {"phi3", "Phi3"};
    case Family::kOlmo:
      return {"olmo", "Olmo"};
    case Family::kOlmo2:
      return {"olmo2", "Olmo2"};
    case Family::kNeox:
      return {"gpt_neox", "GPTNeoX"};
    case Family::kFalcon:
      return {"falcon", "Falcon"};
    case Family::kDeepseek:
      return {"deepseek", "Deepseek"};
  }
  return {"", ""};
}

}  // namespace

void add_balancing(const Model& model, json& config) {
  const double layers = static_cast<double>(model.layers - model.decoder.dense_layers);
  config["router_aux_loss_coef"] = model.router_auxiliary_loss * layers / static_cast<double>(model.experts_per_token);
  config["output_router_logits"] = model.router_auxiliary_loss > 0;
}

json decoder_sizes(const Model& model) {
  json config = {{"num_hidden_layers", model.layers},
                 {"hidden_size", model.hidden},
                 {"num_attention_heads", model.heads},
                 {"num_key_value_heads", model.kv_heads},
                 {"head_dim", model.head_dim},
                 {"intermediate_size", model.ffn_hidden},
                 {"max_position_embeddings", model.max_sequence},
                 {"hidden_act", activation_name(model.activation)},
                 {"rms_norm_eps", model.norm_epsilon},
                 {"attention_dropout", model.dropout}};
  add_rope(model, config);
  return config;
}

json decoder_config(const Model& model) {
  json config = decoder_sizes(model);
  const auto [type, name] = class_of(model);
  config["model_type"] = type;
  const char* task = model.classes > 0 ? "ForSequenceClassification" : "ForCausalLM";
  // Gemma 3's text classes differ in their first half.
  const bool text = model.decoder.family == Family::kGemma3 && model.classes > 0;
  config["architectures"] = json::array({std::string(name) + (text ? "Text" : "") + task});
  add_family(model, config);
  return config;
}

}  // namespace lockstep::spec::hf
