// One transformer (or state-space) layer, and the embedding and head around the stack: what a rank computes, moves and
// keeps for one micro-batch under a layout. Pure functions of plain numbers; nothing is allocated.
#pragma once

#include <cstdint>

#include "lockstep/cost/gemm.h"
#include "lockstep/cost/links.h"
#include "lockstep/cost/profile/constants.h"
#include "lockstep/plan/layout.h"
#include "lockstep/spec/model.h"

namespace lockstep::cost {

// The numbers of a language model as doubles, once.
struct Dimensions {
  spec::Arch arch = spec::Arch::kGpt;
  double layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  bool gated = false;  // two up projections
  double rotary = 0;   // share of a head that is rotated
  double norms = 2;    // of a layer, those of queries and keys aside
  bool qk_norm = false;
  double blocks = 2;       // of a layer, as tensor parallelism counts them: each is entered once and left once
  bool fused_gate = true;  // our engine keeps the inner activations of the MLP once less (SwiGLU, gelu_tanh)
  // Latent attention; 0: plain. head_dim is then the mean of a head's keys and values, on which work and memory depend.
  double key_value_rank = 0, query_rank = 0, key_dim = 0, value_dim = 0, rotated_keys = 0;
  double window = 0;          // keys that a query of a layer with a window sees
  double windowed_share = 0;  // of the layers
  bool causal = true;
  bool dropout = false;  // masks are kept
  bool tied = false;     // the head's weight is the token embedding's; never a classifier's
  double experts = 0, experts_per_token = 0, shared_experts = 0;
  double dense_share = 0, dense_ffn = 0;  // of a model with experts: its layers without, and their width
  double inner = 0, state = 0, dt_rank = 0, conv_kernel = 0;  // Mamba
  double dense_parameters_per_layer = 0;                      // everything but routed experts
  double whole_parameters_per_layer = 0;                      // of these, what tensor parallelism does not split
  double expert_parameters_per_layer = 0;                     // all routed experts
  double embedding_parameters = 0;                            // first stage: tokens and positions
  double head_parameters = 0;  // last stage: LM head or classifier, final norm; tied: a copy of the embedding
};
Dimensions dimensions_of(const spec::Model& model);

// Keys that a token sees in a sequence, the mean over tokens and layers. In a window the first ones see fewer.
double keys_per_token(const Dimensions& model, double sequence);

// Where the groups of a layout sit.
struct GroupPlacements {
  GroupPlacement tp, cp, shard, replica, data, ep, expert_data, expert_shard;
  // shard: shard x cp, what ZeRO divides over; replica: dp; data: dp x shard x cp, everyone with the same weights;
  // expert_data: everyone with the same experts; expert_shard: those of them that ZeRO divides the experts over.
};

// Seconds on the device for one micro-batch of one layer; communication apart, as if nothing were hidden.
struct LayerSeconds {
  double forward = 0;
  double backward = 0;         // both gradients
  double weight_gradient = 0;  // the part of backward that may be postponed (zero-bubble schedules)
  double recompute = 0;        // forward work done again in backward
  double tp_forward = 0, tp_backward = 0;
  double tp_host_forward = 0, tp_host_backward = 0;  // the least that launching and agreeing takes, whatever the size
  double cp_forward = 0, cp_backward = 0;
  double ep_forward = 0, ep_backward = 0;
};

// Bytes kept from forward to backward by one layer for one micro-batch, and the most it needs beside while it runs.
struct LayerBytes {
  double kept = 0;
  double gathered = 0;  // more, where gathered block inputs live on until the device has caught up with the host
  double transient = 0;
};

// Everything the functions below read.
struct LayerContext {
  const Dimensions& model;
  const plan::Layout& layout;
  const Constants& constants;
  const StackFacts& facts;
  const DeviceRates& rates;
  const LinkRates& links;
  const GroupPlacements& groups;
  double micro = 1;
  double sequence = 0;
};

LayerSeconds layer_seconds(const LayerContext& context);
LayerBytes layer_bytes(const LayerContext& context);

// LM head (or classifier) with its loss, and the embedding: forward, backward, weight gradient, tp communication.
LayerSeconds head_seconds(const LayerContext& context);
LayerSeconds embedding_seconds(const LayerContext& context);
double logits_bytes(const LayerContext& context);

}  // namespace lockstep::cost
