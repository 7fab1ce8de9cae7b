// The kernel of attention: a stretch of queries over a stretch of keys, with the log-sum-exp of the scores beside the
// result, so that results over several stretches of keys can be merged (ring attention) and probabilities computed
// again in backward (Dao et al., FlashAttention, 2022). A whole sequence is one block. Any device and floating dtype.
// Nothing here is differentiable by itself: callers are autograd functions.
#pragma once

#include <cstdint>

#include <torch/types.h>

#include "lockstep/nn/attention.h"

namespace lockstep::nn {

struct AttentionBlock {
  bool causal = true;     // both stretches are the same one, and row i sees rows up to i; otherwise all rows are seen
  torch::Tensor lengths;  // int64 [batch] or undefined: rows of this stretch of keys that are seen
  AttentionDropout dropout;
  std::int64_t window = 0;  // keys that a query sees, itself included, counted over the sequence; 0: all
  double softcap = 0.0;     // scores become cap x tanh(score / cap); 0: not
  // For dropout and window: where the stretches begin in the sequence, and the rows of the whole sequence.
  std::int64_t first_query = 0;
  std::int64_t first_key = 0;
  std::int64_t sequence = 0;
};

// Shapes as in self_attention, with any number of queries and keys.
struct BlockTensors {
  torch::Tensor q, k, v;
};

// fp64 for fp64, else fp32: the dtype of results that are added up.
torch::ScalarType wide_type(const torch::Tensor& t);

// [batch, rows, heads, head_dim] -> [batch, heads x group, rows, head_dim], every head `group` times in a row.
torch::Tensor heads_first(const torch::Tensor& t, std::int64_t group);

// Whether this device and dtype has a kernel of this repository, which reads q, k and v in place.
bool has_attention_kernel(const torch::Tensor& q);

// The tensor itself where the kernel can read it in place, else a contiguous copy.
torch::Tensor dense_last(const torch::Tensor& t);

// Bool, broadcast against [batch, heads, rows, keys]: true where query row first + i does not see a key. Undefined
// where every key is seen.
torch::Tensor hidden_keys(const AttentionBlock& block, std::int64_t first, std::int64_t rows, std::int64_t keys,
                          torch::Device device);

struct BlockResult {
  torch::Tensor out;  // [batch, queries, heads, head_dim], contiguous, wide_type()
  torch::Tensor lse;  // [batch, heads, queries], contiguous, wide_type(); -inf for rows that see nothing
};
BlockResult attention_block_forward(const BlockTensors& in, const AttentionBlock& block);

// Gradients of q, k and v from the gradient of `out`, where `out` and `lse` are of the whole row: merged over all
// stretches of keys that the queries see. They are written into `gradients` (any strides with a dense last dim,
// wide_type()), or added to what is there.
void attention_block_backward(const BlockTensors& in, const BlockResult& result, const torch::Tensor& dout,
                              const AttentionBlock& block, BlockTensors& gradients, bool add);

}  // namespace lockstep::nn
