// Self-attention: the quickest exact implementation for a tensor's device, libtorch's version and the ranks that hold
// the sequence.
#pragma once

#include <cstdint>
#include <functional>

#include <torch/types.h>

#include "lockstep/nn/partition.h"
#include "lockstep/nn/random.h"

namespace lockstep::nn {

// Dropout of the probabilities. Masks are drawn by (head, query, key) numbered over the whole model and sequence, so
// any split of heads and rows over ranks draws the same ones. Not so in bf16 and fp16 on CUDA: there the fused kernels
// draw them from attention_seed(), the same in every run of the same layout.
struct AttentionDropout {
  double probability = 0.0;
  DropoutSite site;
  std::int64_t first_head = 0;  // number of the first query head among the model's heads
};

struct AttentionOptions {
  bool causal = true;
  // int64 [batch] on the tensors' device, or undefined: keys at and beyond a sample's length (counted over the whole
  // sequence) are not seen. A sample of length 0 yields zeros.
  torch::Tensor lengths;
  double dropout = 0.0;
  DropoutSite site;
  std::int64_t first_head = 0;  // as AttentionDropout's
  std::int64_t window = 0;      // a query sees so many keys, itself included (Mistral); 0: all
  double softcap = 0.0;         // scores become cap x tanh(score / cap) (Gemma 2); 0: not
  // As ForwardContext::documents: attend_by_document() takes sequences apart by it, self_attention must not see it.
  torch::Tensor documents;
  // q, k and v are a stretch of a longer sequence that sees nothing of the rest: its first row there, and the rows of
  // all (0: those of q). Dropout is drawn by them.
  std::int64_t first_row = 0, whole_rows = 0;
  const Partition* partition = nullptr;  // not kept; cp and context_exchange are read (null: the sequence is whole)
  bool balanced = true;                  // ring: rows are in context_positions' balanced order, otherwise in order
};

// What a fused kernel draws the masks of one call from.
std::uint64_t attention_seed(const DropoutSite& site, std::int64_t first_head);

// softmax(q k^T / sqrt(head_dim), masked) v. q [batch, rows, heads, head_dim]; k and v [batch, rows, kv_heads,
// head_dim], heads a multiple of kv_heads (grouped-query attention). Any strides with a dense last dim: views into one
// qkv tensor are read in place. Returns [batch, rows, heads, head_dim], contiguous. Nothing of size rows x rows is
// kept. Where cp has several ranks, rows are this rank's (context_attention.h), and every rank of cp must call it, and
// its backward, in the same order; it blocks on the exchange and throws Fault.
torch::Tensor self_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                             const AttentionOptions& options);

// Calls attend(q, k, v, options) for every document by itself, [1, rows of the document, heads, head_dim], and puts the
// results together; once for everything where no options.documents are given. Needs whole sequences (cp of one rank).
using Attend = std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&, const torch::Tensor&,
                                           const AttentionOptions&)>;
torch::Tensor attend_by_document(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                 const AttentionOptions& options, const Attend& attend);

// The same for a whole sequence in one tensor, [batch, rows, heads + 2 kv_heads, head_dim]: query heads, key heads,
// value heads. The gradient is written into one tensor too. options.partition is ignored.
torch::Tensor self_attention_packed(const torch::Tensor& qkv, std::int64_t kv_heads, const AttentionOptions& options);

// The packed projection of GPT-2: qkv [batch, rows, 3 * heads * head_dim] -> [batch, rows, heads * head_dim].
torch::Tensor causal_attention_packed(const torch::Tensor& qkv, std::int64_t heads,
                                      const AttentionDropout& dropout = {});

}  // namespace lockstep::nn
