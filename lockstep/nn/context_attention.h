// Attention over a sequence whose rows lie on several ranks (context parallel). Called by self_attention.
//
// Ring (Liu et al., Ring Attention with Blockwise Transformers, 2023): queries stay, keys and values travel from rank r
// to r + 1 in cp - 1 steps while the block at hand is computed; results are merged by their log-sum-exp. Rows of rank r
// are pieces r and 2 cp - 1 - r of 2 cp equal ones (balanced: every rank has the same share of a causal triangle), or
// piece r of cp. In backward keys and values travel again, and the sum of a rank's gradients of k and v follows them:
// it starts at the owner's successor and comes home in cp - 1 hops. Each message is k and v, or their gradients, of one
// rank's rows: 3 (cp - 1) of them per rank for a forward and a backward.
//
// All-to-all (Jacobs et al., DeepSpeed Ulysses, 2023): rows are in order; rank j gets all rows of the j-th part of the
// heads, attends, and sends the rows home. One exchange out and one home, and the same in backward. Where there are
// fewer key heads than ranks they are repeated first. batch x rows x head_dim x (2 heads + 2 max(kv_heads, cp))
// elements each way.
#pragma once

#include <torch/types.h>

#include "lockstep/nn/attention.h"

namespace lockstep::nn {

// As self_attention; options.partition->cp has at least two ranks, and they all have the same number of rows. Throws
// bad_input where all-to-all cannot divide the heads among the ranks.
torch::Tensor context_attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                                const AttentionOptions& options);

}  // namespace lockstep::nn
