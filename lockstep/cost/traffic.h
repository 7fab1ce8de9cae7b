// What a layout makes its ranks exchange: how many collectives, and the payload of each. The pricer turns these numbers
// into seconds, volumes.h adds them up as bytes, so that price and volume cannot drift apart. Pure functions.
//
// A payload is the buffer handed to the collective: what is reduced, the gathered result, the input of a reduce-scatter
// or an all-to-all, what is sent.
#pragma once

#include <algorithm>
#include <cstdint>

#include "lockstep/cost/constants.h"
#include "lockstep/cost/layer.h"
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
// state-space layer is one block, attention and MLP are two. With sequence parallel (Korthikanti et al. 2022) each
// all-reduce is an all-gather and a reduce-scatter, and backward gathers the block's input once more for the weight
// gradient unless the stack has kept it.
inline double tensor_blocks(const Dimensions& model) { return model.arch == spec::Arch::kMamba ? 1 : 2; }
// The mean over a layer's blocks: expert blocks carry top-k rows per token.
inline double tensor_block_bytes(const Dimensions& model, const LocalSizes& local) {
  return hidden_bytes(model, local) * (model.experts > 0 ? (1 + model.experts_per_token) / 2 : 1.0);
}
inline double tensor_inputs_gathered_again(const plan::Layout& layout, const StackFacts& facts) {
  return facts.keeps_gathered_inputs && layout.pp == 1 ? 0 : 1;
}

// Context parallel. Ring attention (Liu et al. 2023): cp - 1 steps, each passing keys and values on; in backward once
// more and once for their gradients. All-to-all (Jacobs et al. 2023, Ulysses): queries, keys, values and outputs. A
// state-space layer hands its state on, once.
inline double context_ring_step_bytes(const LocalSizes& local) {
  return 2 * local.tokens * local.kv_width * local.element;
}
inline constexpr double kContextRingsInBackward = 2;
inline double context_all_to_all_bytes(const LocalSizes& local) {
  return local.tokens * (2 * local.width + 2 * local.kv_width) * local.element;
}
inline double context_state_bytes(const Dimensions& model, const LocalSizes& local, double micro) {
  return micro * model.inner / local.tp * model.state * 4;
}

// Expert parallel (Lepikhin et al. 2020, GShard): dispatch and combine, each top-k rows per token, in either direction.
inline double expert_all_to_all_bytes(const Dimensions& model, const LocalSizes& local) {
  return hidden_bytes(model, local) * model.experts_per_token / local.outside;
}
inline constexpr double kExpertExchanges = 2;

// Pipeline: the boundary tensor is split over tp (sequence parallel, or scattered and gathered: Narayanan et al. 2021,
// 4.1).
inline double boundary_bytes(const Dimensions& model, const LocalSizes& local) {
  return hidden_bytes(model, local) / local.tp;
}

// One collective that happens `count` times.
struct Transfer {
  double bytes = 0;
  double count = 0;
  double total() const { return bytes * count; }
};

// Data parallel in one step (Rajbhandari et al. 2020, ZeRO). Stage 0: gradients are reduced over everyone with the same
// weights. Stages 1 and 2: reduce-scatter over the shards, all-reduce of the shard over the replicas, all-gather of the
// updated weights. Stage 3: as 2, but weights are gathered in every micro-batch, for forward and for backward. Experts
// are reduced over the ranks that hold the same ones.
struct DataTraffic {
  Transfer reduce;           // all-reduce over shard x cp x dp; stage 0 alone
  Transfer scatter;          // reduce-scatter over the shards
  Transfer replicas;         // all-reduce over dp
  Transfer gather;           // all-gather over the shards
  Transfer experts;          // all-reduce over the ranks with the same experts
  Transfer expert_scatter;   // stage 3, over the shards of the same experts
  Transfer expert_gather;    // stage 3, likewise
  Transfer expert_replicas;  // all-reduce over the ranks with the same shard of them, where they were scattered
  bool scatters_each_micro_batch = false;
};

inline DataTraffic data_traffic(const plan::Layout& layout, const StackFacts& facts, const ParameterBytes& bytes,
                                double dense, double expert, double micro_batches) {
  const double gradient = is_narrow(layout.precision) ? facts.reduced_gradient_bytes : bytes.weight;
  DataTraffic traffic;
  const bool scatters = layout.zero >= 2 && facts.reduces_each_micro_batch;
  if (expert > 0 && !(layout.zero == 3 && scatters)) traffic.experts = {expert * gradient, 1};
  if (layout.zero == 0) {
    traffic.reduce = {dense * gradient, 1};
    return traffic;
  }
  traffic.scatters_each_micro_batch = scatters;
  traffic.scatter = {dense * gradient, scatters ? micro_batches : 1};
  traffic.replicas = {dense * gradient / dense_shards(layout), 1};
  traffic.gather = {dense * bytes.weight, layout.zero == 3 ? 2 * micro_batches : 1};
  if (layout.zero == 3 && expert > 0) {
    traffic.expert_gather = {expert * bytes.weight, 2 * micro_batches};
    if (scatters) {
      traffic.expert_scatter = {expert * gradient, micro_batches};
      traffic.expert_replicas = {expert * gradient / expert_shards(layout), 1};
    }
  }
  return traffic;
}

}  // namespace lockstep::cost
