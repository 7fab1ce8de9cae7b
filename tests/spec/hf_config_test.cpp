#include "lockstep/spec/hf_config.h"

#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>

#include "../base/expect_user_error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/yaml.h"
#include "lockstep/spec/model_reader.h"

namespace lockstep::spec {
namespace {

using lockstep::testing::user_error;

class HfConfig : public ::testing::Test {
 protected:
  // A folder named like the model, as Hugging Face lays them out.
  std::string folder_with(const std::string& json) {
    const auto folder = temporary_.path() / "some-model";
    make_folders(folder);
    write_file_atomically(folder / "config.json", json);
    return folder.string();
  }

  TemporaryFolder temporary_;
};

// The fields of the released config.json files that matter.
const char* const kGpt2 = R"({"model_type": "gpt2", "activation_function": "gelu_new", "attn_pdrop": 0.1,
  "embd_pdrop": 0.1, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "n_ctx": 1024, "n_embd": 768,
  "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1, "vocab_size": 50257})";
const char* const kLlama2_70b = R"({"model_type": "llama", "hidden_act": "silu", "hidden_size": 8192,
  "initializer_range": 0.02, "intermediate_size": 28672, "max_position_embeddings": 4096, "num_attention_heads": 64,
  "num_hidden_layers": 80, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": null,
  "tie_word_embeddings": false, "vocab_size": 32000})";
const char* const kLlama32_1b = R"({"model_type": "llama", "attention_bias": false, "head_dim": 64,
  "hidden_act": "silu", "hidden_size": 2048, "intermediate_size": 8192, "max_position_embeddings": 131072,
  "mlp_bias": false, "num_attention_heads": 32, "num_hidden_layers": 16, "num_key_value_heads": 8,
  "rms_norm_eps": 1e-05, "rope_theta": 500000.0, "tie_word_embeddings": true, "vocab_size": 128256,
  "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                   "original_max_position_embeddings": 8192, "rope_type": "llama3"}})";
const char* const kMistral = R"({"model_type": "mistral", "hidden_act": "silu", "hidden_size": 4096,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096,
  "tie_word_embeddings": false, "vocab_size": 32000})";
const char* const kMixtral = R"({"model_type": "mixtral", "hidden_act": "silu", "hidden_size": 4096,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "num_attention_heads": 32, "num_experts_per_tok": 2,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "rms_norm_eps": 1e-05,
  "rope_theta": 1000000.0, "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 32000})";
const char* const kBert = R"({"model_type": "bert", "attention_probs_dropout_prob": 0.1, "hidden_act": "gelu",
  "hidden_dropout_prob": 0.1, "hidden_size": 768, "intermediate_size": 3072, "layer_norm_eps": 1e-12,
  "max_position_embeddings": 512, "num_attention_heads": 12, "num_hidden_layers": 12, "type_vocab_size": 2,
  "vocab_size": 30522})";
const char* const kMamba = R"({"model_type": "mamba", "conv_kernel": 4, "expand": 2, "hidden_size": 768,
  "intermediate_size": 1536, "num_hidden_layers": 24, "state_size": 16, "time_step_rank": 48, "use_bias": false,
  "use_conv_bias": true, "vocab_size": 50280, "layer_norm_epsilon": 1e-05})";

TEST_F(HfConfig, gives_the_parameter_counts_of_the_released_models) {
  const std::pair<const char*, std::int64_t> rows[] = {{kGpt2, 124'439'808},         {kLlama2_70b, 68'976'648'192},
                                                       {kLlama32_1b, 1'235'814'400}, {kMistral, 7'241'732'096},
                                                       {kMixtral, 46'702'792'704},   {kBert, 109'482'240},
                                                       {kMamba, 129'135'360}};
  for (const auto& [json, count] : rows) EXPECT_EQ(parameter_count(read_hf_config(folder_with(json))), count) << json;
}

TEST_F(HfConfig, agrees_with_the_presets_of_the_same_models) {
  const std::pair<const char*, const char*> rows[] = {
      {kLlama2_70b, "llama2-70b"}, {kMixtral, "mixtral-8x7b"}, {kBert, "bert-base"}, {kMamba, "mamba-130m"}};
  for (const auto& [json, preset] : rows) {
    Model expected = load_model(preset), read = read_hf_config(folder_with(json));
    expected.name = read.name;
    expected.global_batch_tokens = 0;  // a recipe, not in config.json
    EXPECT_EQ(read, expected) << preset;
  }
}

TEST_F(HfConfig, honours_rope_scaling_tied_embeddings_and_head_dim) {
  const Model model = read_hf_config(folder_with(kLlama32_1b));
  EXPECT_TRUE(model.tied_embeddings);
  EXPECT_EQ(model.rope_theta, 500000.0);
  EXPECT_EQ(model.rope_scaling.kind, RopeScaling::Kind::kLlama3);
  EXPECT_EQ(model.rope_scaling.factor, 32.0);
  EXPECT_EQ(model.rope_scaling.original_max_sequence, 8192);
  const Model wide = read_hf_config(folder_with(R"({"model_type": "mistral", "hidden_size": 5120, "head_dim": 128,
    "intermediate_size": 14336, "num_attention_heads": 32, "num_hidden_layers": 40, "num_key_value_heads": 8,
    "vocab_size": 131072})"));
  EXPECT_EQ(wide.head_dim, 128);  // not 5120 / 32
  EXPECT_EQ(parameter_count(wide), 12'247'782'400);
}

TEST_F(HfConfig, balances_experts_where_transformers_would) {
  const auto auxiliary = [&](const std::string& fields) {
    return read_hf_config(folder_with(std::string(kMixtral).insert(1, fields))).router_auxiliary_loss;
  };
  EXPECT_EQ(auxiliary(""), 0.0);
  EXPECT_EQ(auxiliary(R"("router_aux_loss_coef": 0.02,)"), 0.0);
  EXPECT_EQ(auxiliary(R"("router_aux_loss_coef": 0.02, "output_router_logits": true,)"), 0.02 * 2 / 32);
  EXPECT_EQ(auxiliary(R"("output_router_logits": true,)"), 0.001 * 2 / 32);
  EXPECT_HAS(user_error([&] { auxiliary(R"("router_aux_loss_coef": -1,)"); }), "`router_aux_loss_coef` is -1");
  EXPECT_HAS(user_error([&] { auxiliary(R"("router_jitter_noise": 0.1,)"); }), "router_jitter_noise");
}

const char* const kSmall = R"("hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
  "num_key_value_heads": 2, "num_hidden_layers": 6, "vocab_size": 100)";

// Layers of a small model of this type, by their windows: "--5" is two full ones and one with a window of 5.
std::string windows(const std::string& fields) {
  const Model model = parse_hf_config("{" + std::string(kSmall) + ", " + fields + "}", "some/config.json");
  std::string text;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::int64_t window = window_of(model, layer);
    text += window > 0 ? std::to_string(window) : "-";
  }
  return text;
}

TEST_F(HfConfig, has_the_windows_that_transformers_gives_each_layer) {
  EXPECT_EQ(windows(R"("model_type": "mistral", "sliding_window": 5)"), "555555");
  EXPECT_EQ(windows(R"("model_type": "mistral", "sliding_window": null)"), "------");
  EXPECT_EQ(windows(R"("model_type": "mistral")"), "409640964096409640964096");  // the class has one
  EXPECT_EQ(windows(R"("model_type": "qwen2", "sliding_window": 5)"), "------");
  EXPECT_EQ(windows(R"("model_type": "qwen2", "sliding_window": 5, "use_sliding_window": true)"), "------");
  EXPECT_EQ(windows(R"("model_type": "qwen3", "sliding_window": 5, "use_sliding_window": true,
                       "max_window_layers": 4)"),
            "----55");
  EXPECT_EQ(windows(R"("model_type": "gemma2", "sliding_window": 5)"), "5-5-5-");
  EXPECT_EQ(windows(R"("model_type": "gemma3_text", "sliding_window": 5)"), "55555-");
  EXPECT_EQ(windows(R"("model_type": "gemma3_text", "sliding_window": 5, "layer_types": ["sliding_attention",
                       "sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
                       "full_attention"])"),
            "55-55-");
  EXPECT_EQ(windows(R"("model_type": "phi3")"), "------");
}

TEST_F(HfConfig, refuses_windows_without_a_pattern) {
  const std::string error = user_error([&] {
    windows(R"("model_type": "gemma2", "layer_types": ["sliding_attention", "full_attention", "full_attention",
               "sliding_attention", "full_attention", "full_attention"])");
  });
  EXPECT_HAS(error, "`layer_types` has no pattern that is known (layer 2)");
}

// What their released config.json say, as far as it matters.
TEST_F(HfConfig, of_llamas_relatives_agrees_with_their_presets) {
  const std::pair<const char*, const char*> rows[] = {
      {"mistral-7b", kMistral},
      {"qwen2.5-7b", R"({"model_type": "qwen2", "hidden_size": 3584, "intermediate_size": 18944,
        "max_position_embeddings": 32768, "max_window_layers": 28, "num_attention_heads": 28, "num_hidden_layers": 28,
        "num_key_value_heads": 4, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
        "tie_word_embeddings": false, "use_sliding_window": false, "vocab_size": 152064})"},
      {"qwen3-8b", R"({"model_type": "qwen3", "attention_bias": false, "head_dim": 128, "hidden_size": 4096,
        "intermediate_size": 12288, "max_position_embeddings": 32768, "num_attention_heads": 32,
        "num_hidden_layers": 36, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
        "rope_theta": 1000000, "sliding_window": null, "use_sliding_window": false, "vocab_size": 151936})"},
      {"gemma2-9b", R"({"model_type": "gemma2", "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
        "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 3584, "intermediate_size": 14336,
        "max_position_embeddings": 8192, "num_attention_heads": 16, "num_hidden_layers": 42, "num_key_value_heads": 8,
        "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06, "rope_theta": 10000.0, "sliding_window": 4096,
        "vocab_size": 256000})"},
      {"gemma3-1b", R"({"model_type": "gemma3_text", "head_dim": 256, "hidden_size": 1152, "intermediate_size": 6912,
        "max_position_embeddings": 32768, "num_attention_heads": 4, "num_hidden_layers": 26, "num_key_value_heads": 1,
        "query_pre_attn_scalar": 256, "rope_local_base_freq": 10000, "rope_theta": 1000000, "sliding_window": 512,
        "sliding_window_pattern": 6, "vocab_size": 262144})"},
      {"phi3-mini", R"({"model_type": "phi3", "attention_bias": false, "embd_pdrop": 0.0, "hidden_size": 3072,
        "intermediate_size": 8192, "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "original_max_position_embeddings": 4096, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
        "rope_scaling": null, "rope_theta": 10000.0, "sliding_window": 2047, "vocab_size": 32064})"},
      {"olmo2-7b", R"({"model_type": "olmo2", "attention_bias": false, "hidden_size": 4096, "intermediate_size": 11008,
        "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
        "rms_norm_eps": 1e-06, "rope_theta": 500000, "tie_word_embeddings": false, "vocab_size": 100352})"},
      {"neox-20b", R"({"model_type": "gpt_neox", "hidden_act": "gelu_fast", "hidden_size": 6144,
        "intermediate_size": 24576, "layer_norm_eps": 1e-05, "max_position_embeddings": 2048,
        "num_attention_heads": 64, "num_hidden_layers": 44, "rotary_emb_base": 10000, "rotary_pct": 0.25,
        "tie_word_embeddings": false, "vocab_size": 50432})"},
      {"falcon-7b", R"({"model_type": "falcon", "alibi": false, "bias": false, "hidden_size": 4544,
        "layer_norm_epsilon": 1e-05, "multi_query": true, "new_decoder_architecture": false,
        "num_attention_heads": 71, "num_hidden_layers": 32, "parallel_attn": true, "vocab_size": 65024})"},
      {"deepseek-moe-16b", R"({"model_type": "deepseek", "aux_loss_alpha": 0.001, "first_k_dense_replace": 1,
        "hidden_size": 2048, "intermediate_size": 10944, "max_position_embeddings": 4096,
        "moe_intermediate_size": 1408, "moe_layer_freq": 1, "n_routed_experts": 64, "n_shared_experts": 2,
        "norm_topk_prob": false, "num_attention_heads": 16, "num_experts_per_tok": 6, "num_hidden_layers": 28,
        "num_key_value_heads": 16, "rms_norm_eps": 1e-06, "scoring_func": "softmax", "vocab_size": 102400})"}};
  for (const auto& [preset, json] : rows) {
    Model expected = load_model(preset), read = read_hf_config(folder_with(json));
    expected.name = read.name;
    expected.global_batch_tokens = 0;  // a recipe, not in config.json
    EXPECT_EQ(read, expected) << preset << "\n" << to_yaml(read) << to_yaml(expected);
    EXPECT_EQ(parse_hf_config(to_hf_config(read).dump(), "some-model/config.json"), read) << preset;
  }
}

TEST_F(HfConfig, is_a_model_by_folder_and_by_file_and_named_after_the_folder) {
  const std::string folder = folder_with(kGpt2);
  EXPECT_EQ(load_model(folder).name, "some-model");
  EXPECT_EQ(load_model(folder + "/"), load_model(folder));
  EXPECT_EQ(load_model(folder + "/config.json"), load_model(folder));
  EXPECT_EQ(load_model(folder).dropout, 0.1);
}

TEST_F(HfConfig, an_unknown_type_lists_what_is_supported) {
  const std::string error = user_error([&] { read_hf_config(folder_with(R"({"model_type": "t5"})")); });
  EXPECT_HAS(error, "`t5` is not supported");
  EXPECT_HAS(error, "supported: gpt2, bert, mamba, mixtral, llama, mistral, qwen2, qwen3,");
  EXPECT_HAS(error, "for planning alone: deepseek_v2, deepseek_v3");
  EXPECT_HAS(error, "write its sizes as a model file");
}

// The counts are those of the published weights (transformers 5 on the meta device), without modules that guess a
// second token.
TEST_F(HfConfig, reads_models_that_can_be_planned_alone) {
  struct Case {
    const char* config;
    std::int64_t parameters, active;  // active: without the input embedding
  };
  const Case cases[] = {
      {R"({"model_type": "deepseek_v2", "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
        "moe_intermediate_size": 1408, "n_routed_experts": 64, "n_shared_experts": 2, "num_attention_heads": 16,
        "num_experts_per_tok": 6, "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": null,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 1,
        "max_position_embeddings": 163840, "vocab_size": 102400, "tie_word_embeddings": false,
        "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707,
                         "mscale_all_dim": 0.707, "original_max_position_embeddings": 4096}})",
       15'706'484'224, 2'451'435'008},
      {R"({"model_type": "deepseek_v3", "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512,
        "moe_intermediate_size": 2048, "n_routed_experts": 256, "n_shared_experts": 1, "num_attention_heads": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "q_lora_rank": 1536,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 3,
        "max_position_embeddings": 163840, "vocab_size": 129280, "scoring_func": "sigmoid",
        "topk_method": "noaux_tc", "norm_topk_prob": true, "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 1, "tie_word_embeddings": false,
        "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8"}})",
       671'026'404'352, 36'625'603'584},
      {R"({"model_type": "gemma", "hidden_size": 3072, "intermediate_size": 24576, "num_attention_heads": 16,
        "num_hidden_layers": 28, "num_key_value_heads": 16, "head_dim": 256, "vocab_size": 256000})",
       8'537'680'896, 8'537'680'896},
      {R"({"model_type": "llama4", "text_config": {"hidden_size": 5120, "intermediate_size": 8192,
        "intermediate_size_mlp": 16384, "interleave_moe_layer_step": 1, "num_attention_heads": 40,
        "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 16, "num_experts_per_tok": 1,
        "head_dim": 128, "vocab_size": 202048, "max_position_embeddings": 10485760}})",
       107'769'861'120, 16'138'408'960}};
  for (const Case& each : cases) {
    SCOPED_TRACE(each.config);
    const Model model = read_hf_config(folder_with(each.config));
    EXPECT_EQ(parameter_count(model), each.parameters);
    EXPECT_EQ(active_parameter_count_without_input_embedding(model), each.active);
    EXPECT_FALSE(why_only_planned(model).empty());
    EXPECT_EQ(read_model(parse_yaml(to_yaml(model), "yaml"), "", model.name), model) << to_yaml(model);
  }
}

// As transformers 5 writes it: every field, rope_theta inside rope_parameters, null for what is not given.
TEST_F(HfConfig, reads_what_transformers_5_writes) {
  const Model llama = read_hf_config(folder_with(R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
    "attention_dropout": 0.0, "bos_token_id": 1, "dtype": "float32", "eos_token_id": 2, "head_dim": 4,
    "hidden_act": "silu", "hidden_size": 16, "initializer_range": 0.02, "intermediate_size": 24,
    "max_position_embeddings": 40, "mlp_bias": false, "model_type": "llama", "num_attention_heads": 4,
    "num_hidden_layers": 1, "num_key_value_heads": 2, "pad_token_id": null, "pretraining_tp": 1,
    "rms_norm_eps": 1e-06, "rope_parameters": {"rope_theta": 5000.0, "rope_type": "default"},
    "tie_word_embeddings": false, "transformers_version": "5.22.2", "use_cache": true, "vocab_size": 96})"));
  EXPECT_EQ(llama.rope_theta, 5000.0);
  EXPECT_EQ(llama.rope_scaling.kind, RopeScaling::Kind::kNone);
  EXPECT_EQ(llama.norm_epsilon, 1e-6);
  const Model bert = read_hf_config(folder_with(R"({"add_cross_attention": false,
    "architectures": ["BertForSequenceClassification"], "attention_probs_dropout_prob": 0.1,
    "classifier_dropout": null, "dtype": "float32", "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
    "hidden_size": 16, "id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}, "initializer_range": 0.02,
    "intermediate_size": 24, "is_decoder": false, "layer_norm_eps": 1e-12, "max_position_embeddings": 40,
    "model_type": "bert", "num_attention_heads": 4, "num_hidden_layers": 1, "pad_token_id": 0,
    "tie_word_embeddings": true, "type_vocab_size": 2, "use_cache": true, "vocab_size": 96})"));
  EXPECT_EQ(bert.classes, 3);
  EXPECT_EQ(bert.activation, Activation::kGelu);
}

TEST_F(HfConfig, a_classifier_has_its_labels_and_two_when_the_file_leaves_them_out) {
  const auto classes = [&](const std::string& fields) {
    return read_hf_config(folder_with(std::string(kBert).insert(1, fields + ","))).classes;
  };
  const std::string classifier = R"("architectures": ["BertForSequenceClassification"])";
  EXPECT_EQ(classes(R"("architectures": ["BertForMaskedLM"], "id2label": {"0": "a"})"), 0);
  EXPECT_EQ(classes(R"("architectures": ["BertModel"])"), 0);
  EXPECT_EQ(classes(classifier), 2);
  EXPECT_EQ(classes(classifier + R"(, "num_labels": 5)"), 5);
  EXPECT_EQ(classes(classifier + R"(, "id2label": {"0": "a", "1": "b", "2": "c"})"), 3);
  EXPECT_HAS(user_error([&] { classes(classifier + R"(, "id2label": {"0": "score"})"); }), "regression");
  EXPECT_HAS(user_error([&] { classes(classifier + R"(, "problem_type": "regression")"); }), "problem_type");
  EXPECT_HAS(user_error([&] { classes(classifier + R"(, "classifier_dropout": 0.5)"); }), "classifier_dropout");
  EXPECT_HAS(user_error([&] { classes(R"("architectures": 7)"); }), "architectures");
}

TEST_F(HfConfig, every_language_preset_written_and_read_back_is_the_same_model) {
  int written = 0;
  for (const std::string& preset : model_preset_names()) {
    Model model = load_model(preset);
    if (!model.is_language_model()) continue;
    model.name = "some-model";
    model.global_batch_tokens = 0;
    EXPECT_EQ(read_hf_config(folder_with(to_hf_config(model).dump())), model) << preset;
    ++written;
  }
  EXPECT_GE(written, 20);
}

TEST_F(HfConfig, every_field_that_a_family_has_survives_being_written_and_read_back) {
  const auto expect_same = [&](Model model) {
    model.name = "some-model";
    model.global_batch_tokens = 0;
    const std::string json = to_hf_config(model).dump();
    EXPECT_EQ(to_yaml(read_hf_config(folder_with(json))), to_yaml(model)) << json;
    EXPECT_EQ(read_hf_config(folder_with(json)), model) << json;
  };
  Model common = load_model("gpt2-124m");
  common.ffn_hidden = 1000;
  common.vocab = 100;
  common.max_sequence = 77;
  common.dropout = 0.3;
  common.norm_epsilon = 3e-7;
  common.init_std = 0.011;
  common.tied_embeddings = false;
  for (const auto activation : {Activation::kRelu, Activation::kGelu, Activation::kGeluTanh, Activation::kSilu}) {
    common.activation = activation;
    expect_same(common);
  }
  common.classes = 12;
  expect_same(common);
  Model bert = common;
  bert.arch = Arch::kBert;
  bert.type_vocab = 3;
  expect_same(bert);
  bert.classes = 0;
  expect_same(bert);
  Model llama = common;
  llama.arch = Arch::kLlama;
  llama.kv_heads = 4;
  llama.head_dim = 40;
  llama.rope_theta = 12345.0;
  expect_same(llama);
  llama.rope_scaling = {RopeScaling::Kind::kLinear, 3.5};
  expect_same(llama);
  llama.bias = false;
  llama.rope_scaling = {RopeScaling::Kind::kLlama3, 8.0, 1.5, 3.5, 31};
  expect_same(llama);
  Model moe = llama;
  moe.arch = Arch::kMoe;
  moe.experts = 6;
  moe.experts_per_token = 3;
  expect_same(moe);
  moe.router_auxiliary_loss = 0.02;
  moe.router_z_loss = 0.001;
  moe.capacity_factor = 1.25;
  expect_same(moe);
  moe.router_auxiliary_loss = 1000;  // the most there is
  moe.layers = 7;
  expect_same(moe);
  Model mamba = load_model("mamba-130m");
  mamba.state_size = 5;
  mamba.conv_kernel = 3;
  mamba.expand = 3;
  mamba.dt_rank = 7;
  mamba.bias = true;
  mamba.max_sequence = 99;
  mamba.tied_embeddings = false;
  expect_same(mamba);
}

TEST_F(HfConfig, names_the_class_that_transformers_is_to_build) {
  const auto name = [](const char* preset, std::int64_t classes) {
    Model model = load_model(preset);
    model.classes = classes;
    const nlohmann::json names = to_hf_config(model).at("architectures");
    return names.size() == 1 ? names.at(0).get<std::string>() : names.dump();
  };
  EXPECT_EQ(name("gpt2-124m", 0), "GPT2LMHeadModel");
  EXPECT_EQ(name("gpt2-124m", 2), "GPT2ForSequenceClassification");
  EXPECT_EQ(name("llama3-8b", 0), "LlamaForCausalLM");
  EXPECT_EQ(name("mixtral-8x7b", 0), "MixtralForCausalLM");
  EXPECT_EQ(name("bert-base", 0), "BertForMaskedLM");
  EXPECT_EQ(name("bert-base", 2), "BertForSequenceClassification");
  EXPECT_EQ(name("mamba-130m", 0), "MambaForCausalLM");
}

TEST_F(HfConfig, a_model_that_no_class_computes_is_not_written) {
  const auto refusal = [](const char* preset, const std::function<void(Model&)>& change) {
    Model model = load_model(preset);
    change(model);
    return user_error([&] { to_hf_config(model); });
  };
  EXPECT_HAS(refusal("gpt2-124m", [](Model& m) { m.bias = false; }), "biases");
  EXPECT_HAS(refusal("gpt2-124m", [](Model& m) { m.kv_heads = 4; }), "kv_heads");
  EXPECT_HAS(refusal("gpt2-124m", [](Model& m) { m.classes = 1; }), "regression");
  EXPECT_HAS(refusal("bert-base", [](Model& m) { m.head_dim = 32; }), "head_dim");
  EXPECT_HAS(refusal("bert-base", [](Model& m) { m.type_vocab = 0; }), "token type");
  EXPECT_HAS(refusal("mixtral-8x7b", [](Model& m) { m.shared_experts = 1; }), "shared experts");
  EXPECT_HAS(refusal("mixtral-8x7b", [](Model& m) { m.bias = true; }), "biases");
  EXPECT_HAS(refusal("mamba-130m", [](Model& m) { m.classes = 2; }), "classifier");
  EXPECT_HAS(refusal("mamba-130m", [](Model& m) { m.dropout = 0.1; }), "dropout");
  EXPECT_HAS(refusal("llama3-8b", [](Model& m) { m.decoder.qk_norm = QkNorm::kHead; }),
             "`llama` of Hugging Face does not compute it (qk_norm: head)");
  EXPECT_HAS(refusal("qwen3-8b", [](Model& m) { m.decoder.logit_softcap = 30; }), "logit_softcap: 30");
}

TEST_F(HfConfig, what_would_change_the_numbers_is_refused) {
  const auto with = [](std::string json, const std::string& field) { return json.insert(1, field + ","); };
  EXPECT_HAS(user_error([&] { read_hf_config(folder_with(with(kGpt2, R"("add_cross_attention": true)"))); }),
             "add_cross_attention");
  EXPECT_HAS(
      user_error([&] { read_hf_config(folder_with(with(kBert, R"("position_embedding_type": "relative_key")"))); }),
      "position_embedding_type");
  EXPECT_HAS(user_error([&] { read_hf_config(folder_with(with(kLlama2_70b, R"("mlp_bias": true)"))); }), "mlp_bias");
  EXPECT_HAS(user_error([&] { read_hf_config(folder_with(with(kBert, R"("is_decoder": true)"))); }), "is_decoder");
  EXPECT_HAS(user_error([&] { read_hf_config(folder_with(with(kGpt2, R"("quantization_config": {"bits": 4})"))); }),
             "quantization_config");
  const char* const part = R"("rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5})";
  EXPECT_HAS(user_error([&] { read_hf_config(folder_with(with(kLlama2_70b, part))); }), "partial_rotary_factor");
  std::string yarn = kLlama2_70b;
  yarn.replace(yarn.find("null"), 4, R"({"type": "yarn", "factor": 2.0})");
  EXPECT_HAS(user_error([&] { read_hf_config(folder_with(yarn)); }), "original_max_position_embeddings");
  std::string dynamic = kLlama2_70b;
  dynamic.replace(dynamic.find("null"), 4, R"({"type": "dynamic", "factor": 2.0})");
  EXPECT_HAS(user_error([&] { read_hf_config(folder_with(dynamic)); }), "`rope_scaling.rope_type` is `dynamic`");
}

TEST_F(HfConfig, hostile_files_are_user_errors) {
  for (const char* json : {"", "[]", "{", "{}", R"({"model_type": 7})", R"({"model_type": "gpt2"})",
                           R"({"model_type": "gpt2", "n_layer": -1, "n_embd": 8, "n_head": 2, "vocab_size": 9})",
                           R"({"model_type": "gpt2", "n_layer": 1e9, "n_embd": 8, "n_head": 2, "vocab_size": 9})",
                           R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 9, "n_head": 2, "vocab_size": 9})",
                           R"({"model_type": "gpt2", "n_layer": 2, "n_embd": 8, "n_head": 0, "vocab_size": 9})"}) {
    user_error([&] { read_hf_config(folder_with(json)); });
  }
  user_error([&] { read_hf_config(temporary_.path().string()); }, ExitCode::kEnvironment);
}

TEST_F(HfConfig, numbers_out_of_range_are_refused) {
  const auto with = [](const std::string& change) {
    return R"({"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
      "num_hidden_layers": 2, "vocab_size": 100, )" +
           change + "}";
  };
  const std::pair<const char*, const char*> rows[] = {{R"("initializer_range": -1)", "`initializer_range` is -1"},
                                                      {R"("rms_norm_eps": 2)", "`rms_norm_eps` is 2"},
                                                      {R"("rope_theta": 0)", "`rope_theta` is 0"},
                                                      {R"("attention_dropout": 1.5)", "`attention_dropout` is 1.5"}};
  for (const auto& [change, message] : rows) {
    EXPECT_HAS(user_error([&] { parse_hf_config(with(change), "some/config.json"); }), message);
  }
  EXPECT_EQ(parse_hf_config(with(R"("rope_theta": 500)"), "some/config.json").name, "some");
}

TEST_F(HfConfig, of_an_image_model_is_our_own_and_reads_back) {
  for (const char* name : {"mnist-cnn", "resnet18"}) {
    const Model model = load_model(name);
    const nlohmann::json config = to_hf_config(model);
    EXPECT_EQ(config.at("model_type"), "lockstep");
    EXPECT_EQ(read_hf_config(folder_with(config.dump())), model);
  }
  const char* const elsewhere = R"({"model_type": "lockstep", "lockstep_model": "preset: /etc/passwd"})";
  EXPECT_HAS(user_error([&] { read_hf_config(folder_with(elsewhere)); }), "lockstep_model");
}

}  // namespace
}  // namespace lockstep::spec
