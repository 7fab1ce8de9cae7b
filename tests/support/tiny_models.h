// Models for tests, by their sizes.
#pragma once

#include <cstdint>

#include "lockstep/spec/model.h"

namespace lockstep::tiny {

struct ModelSizes {
  std::int64_t layers, hidden, heads, ffn_hidden, vocab, max_sequence;
};

inline spec::Model gpt_of(const ModelSizes& sizes, const char* name = "gpt") {
  spec::Model model;
  model.name = name;
  model.arch = spec::Arch::kGpt;
  model.layers = sizes.layers;
  model.hidden = sizes.hidden;
  model.heads = model.kv_heads = sizes.heads;
  model.head_dim = sizes.hidden / sizes.heads;
  model.ffn_hidden = sizes.ffn_hidden;
  model.vocab = sizes.vocab;
  model.max_sequence = sizes.max_sequence;
  model.tied_embeddings = true;
  return model;
}

// `kv_heads` 0: as many as heads.
inline spec::Model llama_of(const ModelSizes& sizes, std::int64_t kv_heads = 0, const char* name = "llama") {
  spec::Model model = gpt_of(sizes, name);
  model.arch = spec::Arch::kLlama;
  if (kv_heads > 0) model.kv_heads = kv_heads;
  model.tied_embeddings = false;
  model.bias = false;
  model.activation = spec::Activation::kSilu;
  return model;
}

struct StateSizes {
  std::int64_t state_size, conv_kernel, expand, dt_rank;
};

// Of `sizes` it has layers, hidden, vocab and max_sequence.
inline spec::Model mamba_of(const ModelSizes& sizes, const StateSizes& state, const char* name = "mamba") {
  spec::Model model = llama_of(sizes, 0, name);
  model.arch = spec::Arch::kMamba;
  model.heads = model.kv_heads = model.head_dim = model.ffn_hidden = 0;
  model.state_size = state.state_size;
  model.conv_kernel = state.conv_kernel;
  model.expand = state.expand;
  model.dt_rank = state.dt_rank;
  model.tied_embeddings = true;
  return model;
}

}  // namespace lockstep::tiny
