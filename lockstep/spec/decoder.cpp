#include "lockstep/spec/decoder.h"

#include <fmt/format.h>

#include "lockstep/base/map_reader.h"
#include "lockstep/spec/model.h"

namespace lockstep::spec {
namespace {

constexpr std::int64_t kWidest = 1 << 22;

void read_norms(MapReader& reader, Model& model) {
  Decoder& d = model.decoder;
  reader.choice("norm", d.norm);
  reader.boolean("norm_plus_one", d.norm_plus_one);
  reader.boolean("norm_bias", d.norm_bias);
  reader.choice("norm_place", d.norm_place);
  reader.choice("parallel_block", d.parallel_block);
  if (d.norm_plus_one && d.norm != NormKind::kRms) {
    throw reader.error_at("norm_plus_one", "norm_plus_one is RMSNorm's alone", "set norm: rms");
  }
  if (d.norm_bias && d.norm != NormKind::kLayer) {
    throw reader.error_at("norm_bias", "norm_bias is LayerNorm's alone", "set norm: layer");
  }
  if (d.parallel_block != ParallelBlock::kNone && d.norm_place != NormPlace::kBefore) {
    throw reader.error_at("parallel_block", "a parallel block has its norms before it", "set norm_place: before");
  }
}

void read_latent(MapReader& reader, Model& model) {
  Decoder& d = model.decoder;
  reader.count("key_value_rank", d.key_value_rank, 0, kWidest);
  reader.count("query_rank", d.query_rank, 0, kWidest);
  reader.count("value_dim", d.value_dim, 0, kWidest);
  if (d.key_value_rank == 0) {
    for (const char* key : {"query_rank", "value_dim"}) {
      if (reader.has(key))
        throw reader.error_at(key, fmt::format("{} is latent attention's alone", key),
                              "give key_value_rank, or omit it");
    }
    d.query_rank = d.value_dim = 0;
    return;
  }
  if (d.value_dim == 0) d.value_dim = model.head_dim;
  if (model.kv_heads != model.heads) {
    throw reader.error_at("key_value_rank", "latent attention has as many heads of keys as of queries",
                          "omit kv_heads, or omit key_value_rank");
  }
}

void read_attention(MapReader& reader, Model& model) {
  Decoder& d = model.decoder;
  reader.boolean("qkv_bias", d.qkv_bias);
  reader.boolean("attention_output_bias", d.attention_output_bias);
  reader.choice("qk_norm", d.qk_norm);
  reader.real("clip_qkv", d.clip_qkv, 0.0, 1e6);
  reader.real("score_dim", d.score_dim, 0.0, 1e6);
  reader.real("attention_softcap", d.attention_softcap, 0.0, 1e6);
  reader.real("logit_softcap", d.logit_softcap, 0.0, 1e6);
  reader.real("rotary_fraction", d.rotary_fraction, 1e-3, 1.0);
  reader.real("local_rope_theta", d.local_rope_theta, 0.0, 1e12);
  reader.boolean("scaled_embeddings", d.scaled_embeddings);
  if (d.qk_norm != QkNorm::kNone && d.norm != NormKind::kRms) {
    throw reader.error_at("qk_norm", "queries and keys are normalised by RMSNorm alone", "set norm: rms");
  }
  read_latent(reader, model);
  reader.boolean("only_planned", d.only_planned);
  if (model.head_dim > 0 && (rotary_dim(model) < 2 || rotary_dim(model) % 2 != 0)) {
    throw reader.error_at(
        "rotary_fraction",
        fmt::format("{} elements of a head are rotated, which is not an even number of at least 2", rotary_dim(model)),
        "change rotary_fraction or head_dim");
  }
}

void read_windows(MapReader& reader, Model& model) {
  Decoder& d = model.decoder;
  reader.count("sliding_window", d.sliding_window);
  reader.count("window_period", d.window_period, 0, kWidest);
  reader.count("window_from", d.window_from, 0, kWidest);
  if (d.sliding_window > 0) return;
  for (const char* key : {"window_period", "window_from", "local_rope_theta"}) {
    if (reader.has(key)) {
      throw reader.error_at(key, fmt::format("{} is for layers with a sliding_window", key),
                            "give sliding_window, or omit it");
    }
  }
  d.window_period = d.window_from = 0;
  d.local_rope_theta = 0;
}

void read_routing(MapReader& reader, Model& model) {
  Decoder& d = model.decoder;
  reader.count("dense_layers", d.dense_layers, 0, kWidest);
  reader.count("dense_ffn_hidden", d.dense_ffn_hidden, 0, kWidest);
  reader.boolean("normalized_routing", d.normalized_routing);
  reader.real("routed_scale", d.routed_scale, 1e-6, 1e6);
  if (d.dense_layers > 0 && d.dense_ffn_hidden == 0) {
    throw reader.error_at("dense_layers", "the dense layers need dense_ffn_hidden", "give the width of their MLP");
  }
  if (d.dense_layers >= model.layers && model.layers > 0) {
    throw reader.error_at("dense_layers", fmt::format("{} of {} layers are dense", d.dense_layers, model.layers),
                          "leave layers with experts, or use arch llama");
  }
  if (d.dense_layers == 0) d.dense_ffn_hidden = 0;
}

void adopt_gemma(Model& model) {
  Decoder& d = model.decoder;
  d.norm_plus_one = true;
  d.norm_place = NormPlace::kBoth;
  d.scaled_embeddings = true;
  model.activation = Activation::kGeluTanh;
  model.tied_embeddings = true;
}

void adopt_layer_norm(Model& model) {
  model.decoder.norm = NormKind::kLayer;
  model.decoder.norm_bias = true;
  model.decoder.gated_mlp = false;
  model.activation = Activation::kGelu;
}

}  // namespace

bool has_decoder(const Model& model) { return model.arch == Arch::kLlama || model.arch == Arch::kMoe; }

void adopt_family(Model& model, Family family) {
  Decoder& d = model.decoder;
  d.family = family;
  switch (family) {
    case Family::kLlama:
    case Family::kMistral:
    case Family::kPhi3:
      break;
    case Family::kQwen2:
      d.qkv_bias = true;
      break;
    case Family::kQwen3:
      d.qk_norm = QkNorm::kHead;
      break;
    case Family::kGemma2:
      adopt_gemma(model);
      break;
    case Family::kGemma3:
      adopt_gemma(model);
      d.qk_norm = QkNorm::kHead;
      break;
    case Family::kOlmo:
      d.norm = NormKind::kLayerPlain;
      break;
    case Family::kOlmo2:
      d.norm_place = NormPlace::kAfter;
      d.qk_norm = QkNorm::kAll;
      break;
    case Family::kNeox:
      adopt_layer_norm(model);
      d.norm_bias = false;  // `bias` gives everything one
      model.bias = true;
      d.parallel_block = ParallelBlock::kTwoNorms;
      d.rotary_fraction = 0.25;
      break;
    case Family::kFalcon:
      adopt_layer_norm(model);
      d.parallel_block = ParallelBlock::kOneNorm;
      model.tied_embeddings = true;
      break;
    case Family::kDeepseek:
      d.normalized_routing = false;
      break;
  }
}

std::int64_t window_of(const Model& model, std::int64_t layer) {
  const Decoder& d = model.decoder;
  const bool full = layer < d.window_from || (d.window_period > 0 && (layer + 1) % d.window_period == 0);
  return full ? 0 : d.sliding_window;
}

std::int64_t rotary_dim(const Model& model) {
  const std::int64_t head_dim = model.head_dim > 0 ? model.head_dim : model.hidden / model.heads;
  // A third of 192 elements is 64 of them whichever way the third was rounded.
  return static_cast<std::int64_t>(static_cast<double>(head_dim) * model.decoder.rotary_fraction + 1e-9);
}

bool is_latent(const Model& model) { return has_decoder(model) && model.decoder.key_value_rank > 0; }

std::int64_t value_dim(const Model& model) { return is_latent(model) ? model.decoder.value_dim : model.head_dim; }

std::string why_only_planned(const Model& model) {
  if (is_latent(model)) return "its attention is latent (MLA)";
  return has_decoder(model) && model.decoder.only_planned ? "only its sizes are known here" : "";
}

bool has_experts(const Model& model, std::int64_t layer) {
  return model.experts > 0 && layer >= model.decoder.dense_layers;
}

std::int64_t mlp_width(const Model& model, std::int64_t layer) {
  return model.experts > 0 && layer < model.decoder.dense_layers ? model.decoder.dense_ffn_hidden : model.ffn_hidden;
}

std::string beyond_llama(const Model& model) {
  const Decoder& d = model.decoder;
  if (std::string why = why_only_planned(model); !why.empty()) return why;
  if (d.sliding_window > 0) return "it has sliding windows";
  if (model.bias || d.qkv_bias || d.attention_output_bias) return "its linear layers have biases";
  if (d.qk_norm != QkNorm::kNone) return "it normalises queries and keys";
  if (d.norm != NormKind::kRms || d.norm_plus_one) return "its norms are not Llama's";
  if (d.norm_place != NormPlace::kBefore) return "it has norms behind its blocks";
  if (d.parallel_block != ParallelBlock::kNone) return "attention and MLP are parallel";
  if (!d.gated_mlp || model.activation != Activation::kSilu) return "its MLP is not SwiGLU";
  if (d.attention_softcap > 0 || d.logit_softcap > 0) return "it caps scores or logits";
  if (d.clip_qkv > 0) return "it clips queries, keys and values";
  if (d.score_dim > 0) return "it scales scores in its own way";
  if (d.rotary_fraction != 1.0) return "it rotates heads in part";
  if (d.scaled_embeddings) return "it scales embeddings";
  const RopeScaling::Kind kind = model.rope_scaling.kind;
  if (kind == RopeScaling::Kind::kYarn || kind == RopeScaling::Kind::kLongRope) {
    return fmt::format("its rotary scaling is {}", to_string(kind));
  }
  return "";
}

void read_decoder(MapReader& reader, Model& model) {
  read_norms(reader, model);
  read_attention(reader, model);
  read_windows(reader, model);
  if (model.arch == Arch::kMoe) {
    read_routing(reader, model);
    return;
  }
  reader.boolean("gated_mlp", model.decoder.gated_mlp);
}

}  // namespace lockstep::spec
