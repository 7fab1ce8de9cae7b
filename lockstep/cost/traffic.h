// What a layout makes its ranks exchange: how many collectives, and the payload of each. The pricer turns these numbers
// into seconds, volumes.h adds them up as bytes, so that price and volume cannot drift apart. Pure functions.
//
// A payload is the buffer handed to the collective: what is reduced, the gathered result, the input of a reduce-scatter
// or an all-to-all, what is sent.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/cost/layer.h"
#include "lockstep/cost/profile/constants.h"
#include "lockstep/cost/states.h"
#include "lockstep/plan/layout.h"

namespace lockstep::cost {

// Sizes of one micro-batch as a rank sees them, after tp and cp.
struct LocalSizes {
  double tokens = 0;
  double tp = 1, cp = 1;
  double width = 0;     // query heads x head_dim
  double kv_width = 0;  // key/value heads of this rank x head_dim; fewer heads than ranks are replicated
  double ffn = 0;
  double outside = 1;  // divisor of what lies outside the tensor-parallel blocks: tp with sequence parallel
  double element = 0;  // bytes
};

inline LocalSizes local_sizes(const Dimensions& model, const plan::Layout& layout, double micro, double sequence) {
  LocalSizes local;
  local.tp = static_cast<double>(layout.tp);
  local.cp = static_cast<double>(layout.cp);
  local.tokens = micro * sequence / local.cp;
  local.width = model.heads * model.head_dim / local.tp;
  local.kv_width = std::max(model.kv_heads / local.tp, model.kv_heads > 0 ? 1.0 : 0.0) * model.head_dim;
  local.ffn = model.ffn / local.tp;
  local.outside = layout.sequence_parallel ? local.tp : 1.0;
  local.element = element_bytes(layout.precision);
  return local;
}

// [tokens, hidden]: what a tensor-parallel block, the embedding and the head reduce or gather.
inline double hidden_bytes(const Dimensions& model, const LocalSizes& local) {
  return local.tokens * model.hidden * local.element;
}

// Tensor parallel (Shoeybi et al. 2019): every block of a layer ends in one all-reduce and its backward in another; a
// state-space layer is one block, attention and MLP are two (in a parallel layer one). With sequence parallel
// (Korthikanti et al. 2022) each all-reduce is an all-gather and a reduce-scatter, and backward gathers the block's
// input once more for the weight gradient unless the stack has kept it.
inline double tensor_blocks(const Dimensions& model) { return model.arch == spec::Arch::kMamba ? 1 : model.blocks; }
// The mean over a layer's blocks: expert blocks carry top-k rows per token, unless rows are gathered before they part.
inline double tensor_block_bytes(const Dimensions& model, const LocalSizes& local, const StackFacts& facts) {
  const bool routed = model.experts > 0 && !facts.gathers_before_dispatch;
  return hidden_bytes(model, local) * (routed ? (1 + model.experts_per_token) / 2 : 1.0);
}
inline double tensor_inputs_gathered_again(const plan::Layout& layout, const StackFacts& facts) {
  return facts.keeps_gathered_until_backward || (facts.keeps_gathered_inputs && layout.pp == 1) ? 0 : 1;
}
// A state-space layer's x_proj reads channels that tp has cut: its product (time steps, B and C of every token) is
// all-reduced inside the block, its gradient too.
inline double tensor_projection_bytes(const Dimensions& model, const LocalSizes& local, const StackFacts& facts) {
  if (model.arch != spec::Arch::kMamba || !facts.whole_state_exchanges) return 0;
  return local.tokens * (model.dt_rank + 2 * model.state) * local.element;
}

// Recomputation: how many of a layer's blocks run forward again in backward and exchange again what they exchanged in
// forward, all of their groups alike. Selective recomputation of most stacks begins behind the exchanges.
inline bool recomputes_attention(const Dimensions& model, const plan::Layout& layout, const StackFacts& facts) {
  if (layout.recompute == plan::Recompute::kFull) return true;
  return layout.recompute == plan::Recompute::kSelective && facts.recomputes_attention_block &&
         model.arch != spec::Arch::kMamba;
}
inline double tensor_blocks_again(const Dimensions& model, const plan::Layout& layout, const StackFacts& facts) {
  if (layout.recompute == plan::Recompute::kFull) return tensor_blocks(model);
  return recomputes_attention(model, layout, facts) ? 1 : 0;
}

// Context parallel. Ring attention (Liu et al. 2023): cp - 1 steps, each passing keys and values on; in backward once
// more and once for their gradients. All-to-all (Jacobs et al. 2023, Ulysses): queries, keys, values and outputs. A
// state-space layer hands its state on, with the last rows of its convolution, and gets their gradients back.
inline double context_ring_step_bytes(const LocalSizes& local) {
  return 2 * local.tokens * local.kv_width * local.element;
}
inline constexpr double kContextRingsInBackward = 2;
inline double context_all_to_all_bytes(const Dimensions& model, const LocalSizes& local, const StackFacts& facts) {
  const double kv_heads = local.kv_width / model.head_dim;
  const double copies = facts.copies_shared_keys ? std::max(1.0, local.cp / kv_heads) : 1.0;
  return local.tokens * (2 * local.width + 2 * local.kv_width * copies) * local.element;
}
inline double context_state_bytes(const Dimensions& model, const LocalSizes& local, double micro,
                                  const StackFacts& facts) {
  if (!facts.whole_state_exchanges) return micro * model.inner / local.tp * model.state * 4;
  return micro * model.inner / local.tp * (model.state + model.conv_kernel - 1) * local.element;
}

// Expert parallel (Lepikhin et al. 2020, GShard): dispatch and combine, each top-k rows per token, in either direction.
inline double expert_all_to_all_bytes(const Dimensions& model, const LocalSizes& local, const StackFacts& facts) {
  return hidden_bytes(model, local) * model.experts_per_token / (facts.gathers_before_dispatch ? 1.0 : local.outside);
}
inline constexpr double kExpertExchanges = 2;

// Pipeline: the boundary tensor is split over tp by sequence parallel, and otherwise where the stack scatters and
// gathers it (Narayanan et al. 2021, 4.1).
inline double boundary_bytes(const Dimensions& model, const LocalSizes& local, const StackFacts& facts) {
  return hidden_bytes(model, local) / (facts.scatters_boundaries ? local.tp : local.outside);
}

// One collective that happens `count` times.
struct Transfer {
  double bytes = 0;
  double count = 0;
  double total() const { return bytes * count; }
};

// Data parallel in one step (Rajbhandari et al. 2020, ZeRO). Stage 0: gradients are reduced over everyone with the same
// weights. Stages 1 and 2: reduce-scatter over the shards, all-reduce of the shard over the replicas, all-gather of the
// updated weights. Stage 3: as 2, but weights are gathered in every micro-batch, for forward and for backward, or once
// where they stay gathered. Experts are reduced over the ranks that hold the same ones.
struct DataTraffic {
  Transfer reduce;           // all-reduce over shard x cp x dp; stage 0 alone
  Transfer scatter;          // reduce-scatter over the shards
  Transfer replicas;         // all-reduce over dp
  Transfer gather;           // all-gather over the shards
  Transfer experts;          // all-reduce over the ranks with the same experts
  Transfer expert_scatter;   // over the shards of the same experts; stage 3, or all stages where experts are scattered
  Transfer expert_gather;    // likewise
  Transfer expert_replicas;  // all-reduce over the ranks with the same shard of them, where they were scattered
  bool scatters_each_micro_batch = false;
};

// Bytes per element of a gradient on its way.
inline double travelling_gradient_bytes(const plan::Layout& layout, const StackFacts& facts,
                                        const ParameterBytes& bytes) {
  return is_narrow(layout.precision) ? facts.reduced_gradient_bytes : bytes.weight;
}

inline DataTraffic data_traffic(const plan::Layout& layout, const StackFacts& facts, const ParameterBytes& bytes,
                                double dense, double expert, double micro_batches) {
  const double gradient = travelling_gradient_bytes(layout, facts, bytes);
  DataTraffic traffic;
  const bool each = layout.zero >= 2 && facts.reduces_each_micro_batch;
  const bool scatters_experts = layout.zero > 0 && (facts.scatters_experts || (layout.zero == 3 && each));
  if (expert > 0 && !scatters_experts) traffic.experts = {expert * gradient, 1};
  if (layout.zero == 0) {
    traffic.reduce = {dense * gradient, 1};
    return traffic;
  }
  const double reductions = each ? micro_batches : 1;
  const double gathers = layout.zero == 3 && facts.reshards_after_forward ? 2 * micro_batches : 1;
  traffic.scatters_each_micro_batch = each;
  traffic.scatter = {dense * gradient, reductions};
  traffic.replicas = {dense * gradient / dense_shards(layout), 1};
  traffic.gather = {dense * bytes.weight, gathers};
  if (expert > 0 && scatters_experts) {
    traffic.expert_scatter = {expert * gradient, reductions};
    traffic.expert_replicas = {expert * gradient / expert_shards(layout), 1};
  }
  if (expert > 0 && (layout.zero == 3 || scatters_experts)) {
    traffic.expert_gather = {expert * bytes.weight, gathers};
  }
  return traffic;
}

}  // namespace lockstep::cost
