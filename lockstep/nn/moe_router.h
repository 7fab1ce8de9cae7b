// Router of a mixture of experts: the experts of every token, their weights, and the losses that keep the load even.
#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include "lockstep/nn/model.h"
#include "lockstep/nn/partition.h"
#include "lockstep/spec/model.h"

namespace lockstep::nn {

// Tokens are this rank's, [samples x rows] in order; k = experts_per_token.
struct RouterChoice {
  torch::Tensor weights;              // [tokens, k], fp32 (fp64 models: fp64), differentiable
  std::vector<std::int32_t> experts;  // [tokens, k], first choice first; kDropped (moe_capacity.h) where one was full
  std::int64_t dropped = 0;
  torch::Tensor auxiliary;  // as LayerOutput::auxiliary
};

// Probabilities are the softmax of the logits over all experts; the k most probable are chosen (among equals the lower
// number) and their probabilities divided by their sum (Mixtral, Jiang et al. 2024). So with k = 1 the weight is 1 and
// only the losses below train the gate. Without decoder.normalized_routing they stay as they are (DeepSeek-MoE); either
// way they are multiplied by decoder.routed_scale.
//
// In training, with coefficients that are not 0, over all tokens of the micro-step (all ranks of partition.routing):
//   router_auxiliary_loss x experts x sum over e of f_e P_e   (Fedus et al. 2021)
//     f_e: share of the (token, choice) pairs that go to expert e before any is dropped; P_e: mean probability of e
//   router_z_loss x mean of logsumexp(logits)^2               (Zoph et al. 2022)
// Even load gives an auxiliary loss of router_auxiliary_loss, whatever k is.
//
// Collectives on partition.routing: "routing: expert counts" where a loss or a capacity needs it, "routing: expert
// choices" where a capacity does, none otherwise. Blocks for them; none of them has a backward.
//
// logits [samples, rows, experts] in fp32 (fp64 models: fp64).
RouterChoice route(const torch::Tensor& logits, const spec::Model& spec, const Partition& partition,
                   const ForwardContext& context);

}  // namespace lockstep::nn
