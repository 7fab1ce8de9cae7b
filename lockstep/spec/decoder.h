// Decoder: how the layers of a decoder with rotary positions (arch llama and moe) differ from Llama's. The families
// that Hugging Face publishes are settings of it; the default of every field is Llama's, so `Decoder{}` is Llama.
#pragma once

#include <cstdint>
#include <string>

#include "lockstep/base/enum_names.h"

namespace lockstep {
class MapReader;
}

namespace lockstep::spec {

struct Model;

// Whose files the weights are read from and exported to. It gives the other fields their defaults and decides the names
// of tensors in files and the class of transformers; what is computed the other fields alone decide.
enum class Family {
  kLlama,  // with experts: Mixtral
  kMistral,
  kQwen2,
  kQwen3,
  kGemma2,
  kGemma3,
  kPhi3,
  kOlmo,
  kOlmo2,
  kNeox,
  kFalcon,
  kDeepseek,  // DeepSeek-MoE: experts, the first layers dense
};
constexpr auto names_of(Family) {
  return enum_names<Family::kDeepseek>("llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3", "phi3", "olmo",
                                       "olmo2", "neox", "falcon", "deepseek");
}

enum class NormKind { kRms, kLayer, kLayerPlain };  // plain: LayerNorm without weights
constexpr auto names_of(NormKind) { return enum_names<NormKind::kLayerPlain>("rms", "layer", "layer_plain"); }

// Where attention and MLP have their norms: on what they read, on what they add to the residual stream, or on both.
enum class NormPlace { kBefore, kAfter, kBoth };
constexpr auto names_of(NormPlace) { return enum_names<NormPlace::kBoth>("before", "after", "both"); }

// Attention and MLP one after the other, or both on the layer's input: behind one norm, or each behind its own.
enum class ParallelBlock { kNone, kOneNorm, kTwoNorms };
constexpr auto names_of(ParallelBlock) { return enum_names<ParallelBlock::kTwoNorms>("none", "one_norm", "two_norms"); }

// Norm of queries and keys before they are rotated: of every head by itself, or over all heads together.
enum class QkNorm { kNone, kHead, kAll };
constexpr auto names_of(QkNorm) { return enum_names<QkNorm::kAll>("none", "head", "all"); }

struct Decoder {
  Family family = Family::kLlama;

  NormKind norm = NormKind::kRms;
  bool norm_plus_one = false;  // RMSNorm multiplies by 1 + weight (Gemma)
  bool norm_bias = false;      // LayerNorm has one; Model::bias gives it one too
  NormPlace norm_place = NormPlace::kBefore;
  ParallelBlock parallel_block = ParallelBlock::kNone;
  bool gated_mlp = true;  // activation(gate) x up; otherwise activation(up)

  bool qkv_bias = false;               // of the three projections alone; Model::bias gives all linear layers one
  bool attention_output_bias = false;  // likewise
  QkNorm qk_norm = QkNorm::kNone;
  double clip_qkv = 0.0;           // queries, keys and values are cut off at +- this; 0: not
  double score_dim = 0.0;          // scores are divided by its square root; 0: head_dim
  double attention_softcap = 0.0;  // scores become cap x tanh(score / cap); 0: not
  double logit_softcap = 0.0;      // logits of the LM head likewise

  // Latent attention (DeepSeek-AI 2024, DeepSeek-V2, 2.1): keys and values come from a narrow product that all heads
  // share, queries perhaps from another. A head's queries and keys have head_dim elements, the rotated ones of the keys
  // are shared by all heads. Planned, not trained.
  std::int64_t key_value_rank = 0;  // 0: plain attention
  std::int64_t query_rank = 0;      // 0: queries come from the hidden state
  std::int64_t value_dim = 0;       // of a head

  bool only_planned = false;  // sizes are those of a network that nothing here builds

  std::int64_t sliding_window = 0;  // keys that a query sees, itself included; 0: all
  std::int64_t window_period = 0;   // every so many-th layer sees all keys; 0: no layer does
  std::int64_t window_from = 0;     // layers before this one see all keys

  double rotary_fraction = 1.0;    // of a head is rotated, its first elements
  double local_rope_theta = 0.0;   // of layers with a window, without rope_scaling; 0: as all others
  bool scaled_embeddings = false;  // embeddings are multiplied by sqrt(hidden)

  // With experts.
  std::int64_t dense_layers = 0;  // the first layers have a dense MLP instead
  std::int64_t dense_ffn_hidden = 0;
  bool normalized_routing = true;  // the weights of a token's experts sum to 1; otherwise they are its probabilities
  double routed_scale = 1.0;       // of those weights

  bool operator==(const Decoder&) const = default;
};

// Whether the architecture has a Decoder (arch llama or moe).
bool has_decoder(const Model& model);

// Sets family, and what all models of it have: norms, biases, activation, whether the head is tied.
void adopt_family(Model& model, Family family);

// Keys that layer `layer` lets a query see; 0: all.
std::int64_t window_of(const Model& model, std::int64_t layer);
// Whether it has latent attention.
bool is_latent(const Model& model);
// Elements of a head's values.
std::int64_t value_dim(const Model& model);
// Why it is planned and not trained, as one clause; "" for what nn/ builds.
std::string why_only_planned(const Model& model);
// Elements of a head that are rotated, an even number.
std::int64_t rotary_dim(const Model& model);
// Whether the layer has experts, and the width of its MLP (of one expert).
bool has_experts(const Model& model, std::int64_t layer);
std::int64_t mlp_width(const Model& model, std::int64_t layer);

// The first thing, as one clause ("it has sliding windows"), that a program for plain Llamas would compute wrongly; ""
// for a plain Llama.
std::string beyond_llama(const Model& model);

// The keys of a model file, and what adopt_family() did not set as "key: value" pairs. `family` itself is read first,
// by the caller, since other defaults depend on it. Throws UserError for values that do not go together.
void read_decoder(MapReader& reader, Model& model);

}  // namespace lockstep::spec
