// Model: what is trained. Architecture and its numbers, nothing about where or how.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/spec/decoder.h"
#include "lockstep/spec/script.h"

namespace lockstep::spec {

enum class Arch { kMnistCnn, kCifarCnn, kResNet, kBert, kGpt, kLlama, kMoe, kMamba, kTorchScript, kPlugin };
constexpr auto names_of(Arch) {
  return enum_names<Arch::kPlugin>("mnist-cnn", "cifar-cnn", "resnet", "bert", "gpt", "llama", "moe", "mamba",
                                   "torchscript", "plugin");
}
using lockstep::to_string;

enum class Activation { kRelu, kGelu, kGeluTanh, kSilu };
constexpr auto names_of(Activation) { return enum_names<Activation::kSilu>("relu", "gelu", "gelu_tanh", "silu"); }

// Scaling of rotary positions beyond the trained context (Hugging Face `rope_scaling`).
struct RopeScaling {
  enum class Kind { kNone, kLinear, kLlama3, kYarn, kLongRope };
  friend constexpr auto names_of(Kind) {
    return enum_names<Kind::kLongRope>("none", "linear", "llama3", "yarn", "longrope");
  }
  Kind kind = Kind::kNone;
  double factor = 1.0;                     // longrope: 0 is max_sequence / original_max_sequence
  double low_freq_factor = 1.0;            // llama3
  double high_freq_factor = 4.0;           // llama3
  std::int64_t original_max_sequence = 0;  // llama3, yarn, longrope
  double beta_fast = 32.0;                 // yarn: turns in the original context beyond which a frequency stays
  double beta_slow = 1.0;                  // yarn: and below which it is divided by the factor
  bool truncate = true;                    // yarn: bounds of the passage between them are whole numbers
  double attention_factor = 0.0;           // yarn, longrope: of cosine and sine; 0: what the papers say
  // longrope: divisors of the frequencies, for sequences up to original_max_sequence and for longer ones.
  std::vector<double> short_factors, long_factors;
  bool operator==(const RopeScaling&) const = default;
};

struct Model {
  std::string name;  // preset name, file stem, or "inline"
  Arch arch = Arch::kGpt;

  // Transformers and SSMs.
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;    // = heads unless grouped-query attention
  std::int64_t head_dim = 0;    // = hidden / heads unless given
  std::int64_t ffn_hidden = 0;  // inner size of the MLP (per expert for MoE)
  std::int64_t vocab = 0;
  std::int64_t max_sequence = 0;  // positions (learned) or context length
  bool tied_embeddings = false;
  bool bias = true;  // of linear layers and LayerNorm: GPT and BERT have them, Llama and Mamba do not
  Activation activation = Activation::kGeluTanh;
  double norm_epsilon = 1e-5;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;  // kind kNone: plain RoPE
  Decoder decoder;           // arch llama and moe
  double dropout = 0.0;
  double init_std = 0.02;

  // Mixture of experts.
  std::int64_t experts = 0;
  std::int64_t experts_per_token = 0;
  std::int64_t shared_experts = 0;
  double router_auxiliary_loss = 0.0;  // coefficient of the load-balancing loss; 0: none
  double router_z_loss = 0.0;          // coefficient of the squared log-sum-exp of the router's logits; 0: none
  double capacity_factor = 0.0;        // tokens an expert takes, in units of an even share; 0: all of them (dropless)

  // State-space models (Mamba).
  std::int64_t state_size = 0;
  std::int64_t conv_kernel = 0;
  std::int64_t expand = 0;
  std::int64_t dt_rank = 0;

  // BERT.
  std::int64_t type_vocab = 0;

  // Images, and classification heads. A language model with classes > 0 ends in a classifier instead of the LM head:
  // BERT hidden x classes with bias on the pooled token, the others hidden x classes without bias on the last one.
  std::int64_t image_size = 0;
  std::int64_t image_channels = 0;
  std::int64_t classes = 0;
  std::vector<std::int64_t> stage_blocks;  // ResNet: {3,4,6,3} for 50
  bool bottleneck = false;                 // ResNet: 50 and deeper

  // A module from Python (arch torchscript), or a plugin's model (arch plugin).
  Script script;

  // The usual global batch of this model in tokens (published recipe); 0: unknown. The planner's default.
  std::int64_t global_batch_tokens = 0;

  bool is_language_model() const {
    return arch == Arch::kGpt || arch == Arch::kLlama || arch == Arch::kMoe || arch == Arch::kMamba ||
           arch == Arch::kBert;
  }
  // Its inside is not known here: a module from Python or a plugin's model.
  bool is_scripted() const { return arch == Arch::kTorchScript || arch == Arch::kPlugin; }
  bool is_image_model() const { return !is_language_model() && !is_scripted(); }
  bool operator==(const Model&) const = default;
};

// "a module from Python", "a model of a plugin".
const char* origin_of(const Model& model);

// What YaRN (Peng et al. 2023, 3.4) and LongRoPE (Ding et al. 2024) multiply cosine and sine by; 1 for other kinds.
double rope_attention_factor(const RopeScaling& rope, std::int64_t max_sequence);

// Exact number of trainable parameters, and the same without the input embedding (the count MFU uses;
// a tied LM head counts once, as the head; learned positions and token types belong to the input embedding).
// BERT counts the pooler and no MLM head, as Hugging Face's BertModel does.
// Of a scripted module what was counted in it (Script::facts); the two are the same there.
std::int64_t parameter_count(const Model& model);
std::int64_t parameter_count_without_input_embedding(const Model& model);
// As above with only experts_per_token (and shared) experts of each layer: what one token passes through.
std::int64_t active_parameter_count_without_input_embedding(const Model& model);

// `name` is a preset ("gpt2-124m"), a YAML file, a Hugging Face config.json or a folder that holds one.
// Throws UserError naming the nearest preset, or file:line:column and the nearest key.
Model load_model(const std::string& name);

// The model as a YAML map (`arch: ...` and every field, two spaces of indent per level) that reads back to the same
// value.
std::string to_yaml(const Model& model, int indent = 0);

std::vector<std::string> model_preset_names();

}  // namespace lockstep::spec
