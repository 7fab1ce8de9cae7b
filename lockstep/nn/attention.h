// Causal self-attention: the quickest exact implementation for a tensor's device and libtorch's version.
#pragma once

#include <cstdint>
#include <optional>

#include <torch/types.h>

#include "lockstep/nn/random.h"

namespace lockstep::nn {

struct AttentionDropout {
  double probability = 0.0;
  DropoutSite site;
};

// softmax(q k^T / sqrt(head_dim), causal) v. q [batch, seq, heads, head_dim]; k and v [batch, seq, kv_heads, head_dim],
// heads a multiple of kv_heads (grouped-query attention). Any strides with a dense last dim: views into one qkv
// tensor are read in place. Returns [batch, seq, heads, head_dim], contiguous. Nothing of size seq x seq is kept.
torch::Tensor causal_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                               const AttentionDropout& dropout = {});

// The same for the packed projection of GPT-2: qkv [batch, seq, 3 * heads * head_dim] -> [batch, seq, heads *
// head_dim]. The gradient is written into one packed tensor.
torch::Tensor causal_attention_packed(const torch::Tensor& qkv, std::int64_t heads,
                                      const AttentionDropout& dropout = {});

}  // namespace lockstep::nn
