// config.json of Llama's relatives. What a file leaves out is the default of its class in transformers 5.
#include <fmt/format.h>

#include "lockstep/base/text.h"
#include "lockstep/spec/hf_config.h"
#include "lockstep/spec/hf_read.h"

namespace lockstep::spec::hf {
namespace {

// Defaults of a class; 0: none, head_dim is hidden / heads and kv_heads are heads.
struct Usual {
  Family family = Family::kLlama;
  double norm_epsilon = 1e-6;
  std::int64_t max_sequence = 2048;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  const char* activation_key = "hidden_act";
  const char* activation = "silu";
  const char* epsilon_key = "rms_norm_eps";
};

// What the classes spell alike. Biases, windows and rotary positions are the caller's.
Model sizes_of(const JsonReader& config, const Usual& usual) {
  Model model;
  model.arch = Arch::kLlama;
  model.bias = false;
  adopt_family(model, usual.family);
  model.layers = width(config, "num_hidden_layers", 10'000);
  model.hidden = width(config, "hidden_size");
  model.heads = width(config, "num_attention_heads");
  const std::int64_t kv_heads =
      usual.kv_heads > 0 && !is_null(config, "num_key_value_heads") ? usual.kv_heads : model.heads;
  model.kv_heads = config.integer_or("num_key_value_heads", kv_heads, 1, kWidest);
  check_heads(config, model, "num_attention_heads", usual.head_dim > 0 || config.has("head_dim"));
  model.head_dim =
      config.integer_or("head_dim", usual.head_dim > 0 ? usual.head_dim : model.hidden / model.heads, 1, kWidest);
  model.ffn_hidden = width(config, "intermediate_size");
  model.vocab = width(config, "vocab_size", 1 << 28);
  model.max_sequence = config.integer_or("max_position_embeddings", usual.max_sequence, 1, std::int64_t{1} << 40);
  model.tied_embeddings = config.boolean_or("tie_word_embeddings", model.tied_embeddings);
  model.activation = activation_of(config, usual.activation_key, usual.activation);
  model.norm_epsilon = norm_epsilon_of(config, usual.epsilon_key, usual.norm_epsilon);
  model.dropout = dropout_of(config, {"attention_dropout"}, 0.0);
  return model;
}

// `attention_bias` is of queries, keys, values and the output.
void read_attention_bias(const JsonReader& config, Model& model) {
  const bool bias = config.boolean_or("attention_bias", false);
  model.decoder.qkv_bias = model.decoder.attention_output_bias = bias;
}

// A window that a class has unless the file says null.
std::int64_t usual_window(const JsonReader& config, std::int64_t window) {
  return is_null(config, "sliding_window") ? 0 : config.integer_or("sliding_window", window, 1);
}

Model llama(const JsonReader& config) {
  Model model = sizes_of(config, {});
  read_attention_bias(config, model);
  const bool mlp_bias = config.boolean_or("mlp_bias", false);
  if (mlp_bias && !model.decoder.qkv_bias) {
    config.fail("mlp_bias", "is true and attention_bias is not", "biases of the MLP alone are not supported");
  }
  if (mlp_bias) {
    model.bias = true;
    model.decoder.qkv_bias = model.decoder.attention_output_bias = false;
  }
  read_rope(config, model);
  return model;
}

Model mistral(const JsonReader& config) {
  Model model = sizes_of(config, {.family = Family::kMistral, .max_sequence = 131'072, .kv_heads = 8});
  read_rope(config, model);
  read_windows(config, model, usual_window(config, 4096), 0, 0);
  return model;
}

void read_qwen(const JsonReader& config, Model& model) {
  const bool windows = config.boolean_or("use_sliding_window", false);
  read_rope(config, model);
  read_windows(config, model, windows ? usual_window(config, 4096) : 0,
               config.integer_or("max_window_layers", 28, 0, kWidest), 0);
}

Model qwen2(const JsonReader& config) {
  Model model = sizes_of(config, {.family = Family::kQwen2, .max_sequence = 32'768, .kv_heads = 32});
  read_qwen(config, model);
  return model;
}

Model qwen3(const JsonReader& config) {
  Model model = sizes_of(config, {.family = Family::kQwen3, .max_sequence = 32'768, .kv_heads = 32, .head_dim = 128});
  read_attention_bias(config, model);
  read_qwen(config, model);
  return model;
}

// Dense layers may come first; a class that mixes them in otherwise is refused.
void read_dense_layers(const JsonReader& config, Model& model) {
  if (config.integer_or("decoder_sparse_step", 1) != 1) config.fail("decoder_sparse_step", "is not 1", "not supported");
  if (!config.has("mlp_only_layers") || is_null(config, "mlp_only_layers")) return;
  std::int64_t next = 0;
  for (const nlohmann::json& layer : config.array("mlp_only_layers")) {
    if (!layer.is_number_integer() || layer.get<std::int64_t>() != next++) {
      config.fail("mlp_only_layers", "names others than the first layers", "supported: 0, 1, ... in order");
    }
  }
  if (next >= model.layers) config.fail("mlp_only_layers", "leaves no layer with experts", "take model_type qwen3");
  model.decoder.dense_layers = next;
}

Model qwen3_moe(const JsonReader& config) {
  Model model = sizes_of(config, {.family = Family::kQwen3, .max_sequence = 32'768, .kv_heads = 4});
  model.arch = Arch::kMoe;
  read_attention_bias(config, model);
  read_qwen(config, model);
  read_dense_layers(config, model);
  if (model.decoder.dense_layers > 0) model.decoder.dense_ffn_hidden = model.ffn_hidden;
  model.ffn_hidden = width(config, "moe_intermediate_size");
  model.experts = width(config, config.has("num_local_experts") ? "num_local_experts" : "num_experts");
  model.experts_per_token = config.integer_or("num_experts_per_tok", 8, 1, model.experts);
  model.decoder.normalized_routing = config.boolean_or("norm_topk_prob", false);
  model.router_auxiliary_loss = balancing_of(config, model);
  return model;
}

// null: no cap.
double cap_of(const JsonReader& config, const char* key, double fallback) {
  return is_null(config, key) ? 0.0 : real_between(config, key, fallback, 0.0, 1e6);
}

Model gemma(const JsonReader& config, const Usual& usual) {
  Model model = sizes_of(config, usual);
  read_attention_bias(config, model);
  refuse_true(config, {"use_bidirectional_attention"});
  const double score_dim = real_between(config, "query_pre_attn_scalar", 256.0, 1e-3, 1e6);
  model.decoder.score_dim = score_dim == static_cast<double>(model.head_dim) ? 0.0 : score_dim;
  const bool caps = usual.family == Family::kGemma2;
  model.decoder.attention_softcap = cap_of(config, "attn_logit_softcapping", caps ? 50.0 : 0.0);
  model.decoder.logit_softcap = cap_of(config, "final_logit_softcapping", caps ? 30.0 : 0.0);
  return model;
}

Model gemma2(const JsonReader& config) {
  Model model = gemma(config, {.family = Family::kGemma2,
                               .max_sequence = 8192,
                               .kv_heads = 4,
                               .head_dim = 256,
                               .activation_key = "hidden_activation",
                               .activation = "gelu_pytorch_tanh"});
  read_rope(config, model);
  read_windows(config, model, usual_window(config, 4096), 0, 2);
  return model;
}

Model gemma3(const JsonReader& config) {
  Model model = gemma(config, {.family = Family::kGemma3,
                               .max_sequence = 131'072,
                               .kv_heads = 4,
                               .head_dim = 256,
                               .activation_key = "hidden_activation",
                               .activation = "gelu_pytorch_tanh"});
  // Without a cap of scores in its code, whatever the file says.
  if (model.decoder.attention_softcap > 0) {
    config.fail("attn_logit_softcapping", "is set", "transformers ignores it in Gemma 3; set it to null");
  }
  model.rope_theta = 1e6;
  double local = real_between(config, "rope_local_base_freq", 10'000.0, 1.0, 1e12);
  const auto both = config.object_or_none("rope_parameters");
  if (both && (both->has("full_attention") || both->has("sliding_attention"))) {
    if (const auto of_windows = both->object_or_none("sliding_attention")) {
      Model sliding = model;
      sliding.rope_theta = local;
      read_rope_map(*of_windows, config, sliding);
      local = sliding.rope_theta;
      if (sliding.rope_scaling.kind != RopeScaling::Kind::kNone) {
        of_windows->fail("rope_type", "scales layers with windows", "supported: default");
      }
    }
    if (const auto of_full = both->object_or_none("full_attention")) read_rope_map(*of_full, config, model);
  } else {
    read_rope(config, model);
  }
  read_windows(config, model, usual_window(config, 4096), 0,
               config.integer_or("sliding_window_pattern", 6, 1, kWidest));
  // Even where it is the same it says that layers with windows are not scaled.
  const bool differs = local != model.rope_theta || model.rope_scaling.kind != RopeScaling::Kind::kNone;
  if (model.decoder.sliding_window > 0 && differs) model.decoder.local_rope_theta = local;
  return model;
}

Model phi3(const JsonReader& config) {
  Model model = sizes_of(config, {.family = Family::kPhi3, .norm_epsilon = 1e-5, .max_sequence = 4096});
  refuse_dropout(config, {"resid_pdrop", "embd_pdrop"});
  refuse_true(config, {"attention_bias"});
  read_rope(config, model);
  read_windows(config, model, config.integer_or("sliding_window", 0, 1), 0, 0);
  return model;
}

Model olmo(const JsonReader& config) {
  Model model = sizes_of(config, {.family = Family::kOlmo, .norm_epsilon = 1e-5, .epsilon_key = "layer_norm_eps"});
  read_attention_bias(config, model);
  model.decoder.clip_qkv = real_between(config, "clip_qkv", 0.0, 0.0, 1e6);
  if (model.norm_epsilon != 1e-5) config.fail("layer_norm_eps", "is not 1e-05", "OLMo has no other");
  read_rope(config, model);
  return model;
}

Model olmo2(const JsonReader& config) {
  Model model = sizes_of(config, {.family = Family::kOlmo2, .norm_epsilon = 1e-5});
  read_attention_bias(config, model);
  read_rope(config, model);
  return model;
}

Model neox(const JsonReader& config) {
  Model model = sizes_of(
      config, {.family = Family::kNeox, .norm_epsilon = 1e-5, .activation = "gelu", .epsilon_key = "layer_norm_eps"});
  refuse_dropout(config, {"hidden_dropout"});
  if (!config.boolean_or("attention_bias", true)) {
    config.fail("attention_bias", "is false", "GPT-NeoX without biases of attention is not supported");
  }
  if (!config.boolean_or("use_parallel_residual", true)) model.decoder.parallel_block = ParallelBlock::kNone;
  model.rope_theta = real_between(config, "rotary_emb_base", 10'000.0, 1.0, 1e12);
  model.decoder.rotary_fraction = real_between(config, "rotary_pct", 0.25, 1e-3, 1.0);
  read_rope(config, model);
  return model;
}

// Falcon spells some sizes its own way.
Model falcon(const JsonReader& config) {
  Model model;
  model.arch = Arch::kLlama;
  model.bias = false;
  adopt_family(model, Family::kFalcon);
  refuse_true(config, {"alibi"});
  refuse_dropout(config, {"hidden_dropout", "attention_dropout"});
  model.layers = width(config, "num_hidden_layers", 10'000);
  model.hidden = width(config, "hidden_size");
  model.heads = model.kv_heads = width(config, "num_attention_heads");
  const bool is_new = config.boolean_or("new_decoder_architecture", false);
  if (is_new || !config.boolean_or("multi_query", true)) {
    model.kv_heads = config.integer_or("num_kv_heads", model.heads, 1, kWidest);
  } else {
    model.kv_heads = 1;
  }
  check_heads(config, model, "num_attention_heads", false);
  model.head_dim = model.hidden / model.heads;
  model.ffn_hidden = config.integer_or("ffn_hidden_size", 4 * model.hidden, 1, kWidest);
  model.vocab = width(config, "vocab_size", 1 << 28);
  model.max_sequence = config.integer_or("max_position_embeddings", 2048, 1, std::int64_t{1} << 40);
  model.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
  model.bias = config.boolean_or("bias", false);
  model.activation = activation_of(config, "activation", "gelu");
  model.norm_epsilon = norm_epsilon_of(config, "layer_norm_epsilon", 1e-5);
  const bool parallel = config.boolean_or("parallel_attn", true);
  if (is_new && !parallel) config.fail("parallel_attn", "is false", "the new decoder of Falcon is parallel");
  const std::int64_t norms = config.integer_or("num_ln_in_parallel_attn", is_new ? 2 : 1, 1, 2);
  if (!is_new && norms == 2) config.fail("num_ln_in_parallel_attn", "is 2", "only the new decoder has two norms");
  model.decoder.parallel_block = !parallel    ? ParallelBlock::kNone
                                 : norms == 2 ? ParallelBlock::kTwoNorms
                                              : ParallelBlock::kOneNorm;
  read_rope(config, model);
  return model;
}

// The experts of DeepSeek's classes: the first layers dense, some experts shared.
void read_deepseek_experts(const JsonReader& config, Model& model) {
  model.arch = Arch::kMoe;
  Decoder& d = model.decoder;
  d.dense_ffn_hidden = model.ffn_hidden;
  model.ffn_hidden = width(config, "moe_intermediate_size");
  model.experts = width(config, "n_routed_experts");
  model.experts_per_token = config.integer("num_experts_per_tok", 1, model.experts);
  model.shared_experts = config.integer_or("n_shared_experts", 0, 0, kWidest);
  d.dense_layers = config.integer_or("first_k_dense_replace", 0, 0, model.layers - 1);
  if (d.dense_layers == 0) d.dense_ffn_hidden = 0;
  d.normalized_routing = config.boolean_or("norm_topk_prob", false);
  d.routed_scale = real_between(config, "routed_scaling_factor", 1.0, 1e-6, 1e6);
  model.router_auxiliary_loss = real_between(config, "aux_loss_alpha", 0.001, 0.0, 1e3);
  if (config.integer_or("moe_layer_freq", 1) != 1) config.fail("moe_layer_freq", "is not 1", "not supported");
}

// DeepSeek-MoE (Dai et al. 2024), whose class is published beside its weights.
Model deepseek(const JsonReader& config) {
  Model model = sizes_of(config, {.family = Family::kDeepseek});
  read_attention_bias(config, model);
  read_deepseek_experts(config, model);
  if (config.text("scoring_func", "softmax") != "softmax")
    config.fail("scoring_func", "is not softmax", "not supported");
  read_rope(config, model);
  return model;
}

// DeepSeek-V2 and V3: latent attention. How experts are scored and grouped costs nothing that is counted; the module
// that predicts a second token (num_nextn_predict_layers) is left out, as in transformers.
Model deepseek_latent(const JsonReader& config) {
  Model model = sizes_of(config, {.family = Family::kDeepseek, .head_dim = 1});
  read_attention_bias(config, model);
  read_deepseek_experts(config, model);
  Decoder& d = model.decoder;
  const std::int64_t rotated = width(config, "qk_rope_head_dim");
  model.head_dim = width(config, "qk_nope_head_dim") + rotated;
  model.kv_heads = model.heads;
  d.key_value_rank = width(config, "kv_lora_rank");
  d.query_rank = is_null(config, "q_lora_rank") ? 0 : config.integer_or("q_lora_rank", 1536, 1, kWidest);
  d.value_dim = width(config, "v_head_dim");
  // How long contexts are scaled (yarn with its own mscale) changes no size.
  const auto rope = config.object_or_none("rope_parameters");
  model.rope_theta = real_between(rope ? *rope : config, "rope_theta", 10'000.0, 1.0, 1e12);
  d.rotary_fraction = static_cast<double>(rotated) / static_cast<double>(model.head_dim);
  return model;
}

// Of these classes the sizes are known, and their networks are not built here.
Model gemma1(const JsonReader& config) {
  Model model = sizes_of(config, {.max_sequence = 8192, .kv_heads = 16, .head_dim = 256, .activation = "gelu"});
  read_attention_bias(config, model);
  model.decoder.norm_plus_one = model.decoder.scaled_embeddings = model.decoder.only_planned = true;
  model.tied_embeddings = config.boolean_or("tie_word_embeddings", true);
  read_rope(config, model);
  return model;
}

// The text of Llama 4: experts in every `interleave_moe_layer_step`-th layer. Attention in chunks is priced as whole.
Model llama4(const JsonReader& file) {
  const auto inside = file.object_or_none("text_config");
  const JsonReader& config = inside ? *inside : file;
  Model model = sizes_of(config, {.norm_epsilon = 1e-5, .max_sequence = 131'072, .kv_heads = 8, .head_dim = 128});
  read_attention_bias(config, model);
  model.arch = Arch::kMoe;
  Decoder& d = model.decoder;
  model.experts = width(config, "num_local_experts");
  model.experts_per_token = config.integer_or("num_experts_per_tok", 1, 1, model.experts);
  model.shared_experts = 1;
  const std::int64_t period = config.integer_or("interleave_moe_layer_step", 1, 1, model.layers);
  d.dense_layers = model.layers - model.layers / period;
  if (d.dense_layers > 0) d.dense_ffn_hidden = width(config, "intermediate_size_mlp");
  d.only_planned = true;
  model.rope_theta = 5e5;
  read_rope(config, model);
  return model;
}

}  // namespace

Model mixtral_sizes(const JsonReader& config) {
  Model model = sizes_of(config, {.norm_epsilon = 1e-5, .max_sequence = 131'072, .kv_heads = 8});
  model.arch = Arch::kMoe;
  model.rope_theta = 1e6;
  refuse_true(config, {"attention_bias"});
  read_rope(config, model);
  read_windows(config, model, config.integer_or("sliding_window", 0, 1), 0, 0);
  return model;
}

const std::vector<Reader>& decoder_readers() {
  static const std::vector<Reader> readers = {
      {"llama", llama},        {"mistral", mistral},   {"qwen2", qwen2},        {"qwen3", qwen3}, {"gemma2", gemma2},
      {"gemma3_text", gemma3}, {"phi3", phi3},         {"olmo", olmo},          {"olmo2", olmo2}, {"gpt_neox", neox},
      {"falcon", falcon},      {"deepseek", deepseek}, {"qwen3_moe", qwen3_moe}};
  return readers;
}

const std::vector<Reader>& planned_readers() {
  static const std::vector<Reader> readers = {{"deepseek_v2", deepseek_latent},
                                              {"deepseek_v3", deepseek_latent},
                                              {"kimi_k2", deepseek_latent},
                                              {"gemma", gemma1},
                                              {"llama4", llama4},
                                              {"llama4_text", llama4}};
  return readers;
}

Model read_decoder_config(const JsonReader& config, const std::string& type) {
  for (const auto* readers : {&decoder_readers(), &planned_readers()}) {
    for (const Reader& reader : *readers) {
      if (type == reader.type) return reader.read(config);
    }
  }
  if (type == "gemma3") {
    config.fail("model_type", "`gemma3` reads images too", "take its text model (`gemma3_text`)");
  }
  std::vector<std::string> planned;
  for (const Reader& reader : planned_readers()) planned.emplace_back(reader.type);
  config.fail("model_type", fmt::format("`{}` is not supported", printable(type)),
              fmt::format("supported: {}; for planning alone: {}; to plan another one, write its sizes as a model file "
                          "(arch: llama or moe, layers, hidden, ...)",
                          join(hf_model_types(), ", "), join(planned, ", ")));
}

}  // namespace lockstep::spec::hf
