// Model of a published row: the dimensions it states, the public configuration for what it does not.
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "lockstep/planner/rows/parts.h"
#include "lockstep/spec/presets.h"

namespace lockstep::planner {
namespace {

// Mixture-of-experts models by their public configuration files.
struct ExpertShape {
  const char* name;  // prefix of the model column
  std::int64_t experts, per_token, shared, head_dim, kv_heads;
  const char* note;
};
constexpr const char* kLatentAttention = "latent attention is priced as grouped-query attention of similar cost";
constexpr std::array kExpertShapes{
    ExpertShape{"Grok-1", 8, 2, 0, 128, 8, ""},
    ExpertShape{"DeepSeek-V3", 256, 8, 1, 128, 8, kLatentAttention},
    ExpertShape{"Kimi-K2", 384, 8, 1, 128, 8, kLatentAttention},
    ExpertShape{"Qwen3-30B-A3B", 128, 8, 0, 128, 4, ""},
    ExpertShape{"Qwen3-235B-A22B", 128, 8, 0, 128, 4, ""},
    ExpertShape{"GPT-OSS-120B", 128, 4, 0, 64, 8, ""},
    // Every other layer has 128 experts, the others a dense MLP as wide as two: 64 in every layer have the same
    // parameters and the same work per token.
    ExpertShape{"Llama-4-Maverick", 64, 1, 1, 128, 8, "128 experts in every other layer are priced as 64 in each"},
    ExpertShape{"Mixtral-8x7B", 8, 2, 0, 128, 8, ""},
    ExpertShape{"Mixtral-8x22B", 8, 2, 0, 128, 8, ""},
};

const ExpertShape* find_expert_shape(const std::string& model) {
  for (const ExpertShape& shape : kExpertShapes) {
    if (model.starts_with(shape.name)) return &shape;
  }
  return nullptr;
}

spec::Arch arch_of(const PublishedRow& row, RowNotes& notes) {
  if (row.arch == "llama") return spec::Arch::kLlama;
  if (row.arch == "moe") return spec::Arch::kMoe;
  if (row.arch == "bert") return spec::Arch::kBert;
  if (row.arch == "dense-gpt" || row.arch == "gpt") return spec::Arch::kGpt;
  if (!row.arch.empty()) throw CannotPrice{fmt::format("arch {} has no formulas for published rows", row.arch)};
  notes.add("arch unknown: Llama assumed");
  return spec::Arch::kLlama;
}

double layer_parameters_over_hidden_squared(const spec::Model& model) {
  const bool gated = model.arch == spec::Arch::kLlama || model.arch == spec::Arch::kMoe;
  const double mlp = (gated ? 3.0 : 2.0) * static_cast<double>(model.ffn_hidden) / static_cast<double>(model.hidden);
  const double grouped = static_cast<double>(model.kv_heads) / static_cast<double>(model.heads);
  return 2 + 2 * grouped + mlp;
}

// Usual proportions (width = 128 x depth) where only the parameter count is known: parameters = 12 L h^2.
void guess_hidden(spec::Model& model, const PublishedRow& row, RowNotes& notes) {
  if (!row.params_b) throw CannotPrice{"neither the dimensions nor the parameter count of the model are known"};
  const double parameters = *row.params_b * 1e9;
  const double hidden =
      row.layers ? std::sqrt(parameters / (12.0 * static_cast<double>(*row.layers))) : std::cbrt(parameters * 128 / 12);
  model.hidden = std::max<std::int64_t>(128, std::llround(hidden / 128) * 128);
  notes.guess(fmt::format("hidden unknown: {} from the parameter count", model.hidden), 0.1);
}

// Head size nearest to 128 among the counts that divide the width and that tp divides.
void guess_heads(spec::Model& model, const PublishedRow& row, RowNotes& notes) {
  const std::int64_t tp = row.tp.value_or(1);
  std::int64_t best = 0;
  for (std::int64_t heads = tp; heads <= model.hidden / 8; heads += tp) {
    if (model.hidden % heads != 0) continue;
    if (best == 0 || std::abs(model.hidden / heads - 128) < std::abs(model.hidden / best - 128)) best = heads;
  }
  model.heads = best == 0 ? 1 : best;
  notes.add(fmt::format("heads unknown: {}", model.heads));
}

void fill_attention(spec::Model& model, const PublishedRow& row, RowNotes& notes) {
  if (row.heads) {
    model.heads = *row.heads;
  } else {
    guess_heads(model, row, notes);
  }
  model.kv_heads = row.kv_heads.value_or(model.heads);
  model.head_dim = std::max<std::int64_t>(1, model.hidden / model.heads);
}

void fill_mlp(spec::Model& model, const PublishedRow& row, RowNotes& notes) {
  if (row.ffn) {
    model.ffn_hidden = *row.ffn;
    return;
  }
  const bool gated = model.arch == spec::Arch::kLlama || model.arch == spec::Arch::kMoe;
  model.ffn_hidden = gated ? (model.hidden * 8 / 3 + 255) / 256 * 256 : 4 * model.hidden;
  notes.add(fmt::format("ffn unknown: {}", model.ffn_hidden));
}

void fill_layers(spec::Model& model, const PublishedRow& row, RowNotes& notes) {
  if (row.layers) {
    model.layers = *row.layers;
    return;
  }
  if (!row.params_b) throw CannotPrice{"neither the layers nor the parameter count of the model are known"};
  const double hidden = static_cast<double>(model.hidden);
  const double body = *row.params_b * 1e9 - static_cast<double>(model.vocab) * hidden;
  model.layers =
      std::max<std::int64_t>(1, std::llround(body / (layer_parameters_over_hidden_squared(model) * hidden * hidden)));
  notes.guess(fmt::format("layers unknown: {} from the parameter count", model.layers), 0.05);
}

void fill_experts(spec::Model& model, const PublishedRow& row, RowNotes& notes) {
  const ExpertShape* shape = find_expert_shape(row.model);
  if (shape == nullptr) throw CannotPrice{fmt::format("the experts of {} are not known", row.model)};
  model.experts = shape->experts;
  model.experts_per_token = shape->per_token;
  model.shared_experts = shape->shared;
  model.head_dim = shape->head_dim;
  model.kv_heads = shape->kv_heads;
  if (*shape->note != '\0') notes.guess(shape->note, 0.1);
}

// GPT-2's successors tie the LM head to the embedding (Megatron-LM's default, MPT too), so does BERT, Llama's do not.
// Where the row has a parameter count that only the other choice reaches, that one is taken: nanotron's 1.34B ties, the
// GPTs of Megatron-Core's table do not.
void decide_tying(spec::Model& model, const PublishedRow& row, const std::string& stack) {
  model.tied_embeddings = model.arch == spec::Arch::kGpt || model.arch == spec::Arch::kBert;
  if (stack == "megatron-core-0.8") model.tied_embeddings = false;
  if (row.model.starts_with("Nemotron")) model.tied_embeddings = false;
  if (model.arch != spec::Arch::kLlama || !row.params_b) return;
  const auto miss = [&](bool tied) {
    model.tied_embeddings = tied;
    return std::abs(static_cast<double>(spec::parameter_count(model)) / (*row.params_b * 1e9) - 1);
  };
  const double tied = miss(true);
  const double untied = miss(false);
  model.tied_embeddings = tied < untied && tied < 0.005;
}

void fill_style(spec::Model& model, const PublishedRow& row, const std::string& stack) {
  const bool llama_like = model.arch == spec::Arch::kLlama || model.arch == spec::Arch::kMoe;
  model.activation = llama_like ? spec::Activation::kSilu : spec::Activation::kGeluTanh;
  if (row.model.starts_with("Nemotron")) model.activation = spec::Activation::kRelu;
  model.bias = !llama_like && !stack.starts_with("llm-foundry") && !row.model.starts_with("Nemotron");
  if (model.arch == spec::Arch::kBert) model.type_vocab = 2;
}

// A row that states no dimensions may name a preset, as `lockstep plan --model` does; what it states besides wins.
std::optional<spec::Model> preset_of(const PublishedRow& row, RowNotes& notes) {
  if (row.layers || row.hidden || spec::find_embedded(spec::embedded_models(), row.model) == nullptr) {
    return std::nullopt;
  }
  spec::Model model = spec::load_model(row.model);
  if (!model.is_language_model()) throw CannotPrice{fmt::format("{} is not a language model", row.model)};
  notes.add("dimensions of the preset " + row.model);
  model.heads = row.heads.value_or(model.heads);
  model.kv_heads = row.kv_heads.value_or(model.kv_heads);
  model.ffn_hidden = row.ffn.value_or(model.ffn_hidden);
  model.vocab = row.vocab.value_or(model.vocab);
  if (!row.seq_len) notes.add(fmt::format("sequence length unknown: {}", model.max_sequence));
  model.max_sequence = row.seq_len.value_or(model.max_sequence);
  return model;
}

}  // namespace

spec::Model model_of(const PublishedRow& row, const std::string& stack, RowNotes& notes) {
  if (auto preset = preset_of(row, notes)) return std::move(*preset);
  spec::Model model;
  model.name = row.model.empty() ? "inline" : row.model;
  model.arch = arch_of(row, notes);
  if (row.hidden) {
    model.hidden = *row.hidden;
  } else {
    guess_hidden(model, row, notes);
  }
  fill_attention(model, row, notes);
  fill_mlp(model, row, notes);
  if (!row.vocab) notes.add("vocabulary unknown: 50304");
  model.vocab = row.vocab.value_or(50304);
  fill_layers(model, row, notes);
  if (!row.seq_len) notes.add("sequence length unknown: 2048");
  model.max_sequence = row.seq_len.value_or(2048);
  if (model.arch == spec::Arch::kMoe) fill_experts(model, row, notes);
  fill_style(model, row, stack);
  decide_tying(model, row, stack);
  return model;
}

}  // namespace lockstep::planner
