// The MLP of a mixture-of-experts layer (Mixtral, Jiang et al. 2024): a router sends every token to k of the experts,
// each a SwiGLU MLP of its own, and adds their results by weight. Experts are split over partition.ep, and each one's
// inner width over partition.tp like a dense MLP's (GShard, Lepikhin et al. 2020).
//
// Parameters have Mixtral's names: gate.weight [experts, hidden]; experts.N.w1 (gate), w3 (up) and w2 (down) for the
// experts N of all that this rank holds; shared_expert.gate_proj, up_proj and down_proj where there are shared ones. Or
// DeepSeek's (Dai et al. 2024) and Qwen 3's: gate_proj, up_proj and down_proj of experts.N and shared_experts.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "lockstep/nn/layers.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/partition.h"
#include "lockstep/spec/model.h"

namespace lockstep::nn {

// Not thread-safe; ranks are independent. Registered by the layer as module_name().
class MoeMlp : public torch::nn::Module {
 public:
  static const char* module_name(const spec::Model& spec);

  // Parameters are left uninitialised (layers.h). Throws bad_input for biases and for experts that cannot be split.
  MoeMlp(const spec::Model& spec, std::int64_t layer, const Partition& partition, const torch::TensorOptions& options);

  struct Output {
    torch::Tensor y;          // shape of x: this tp rank's part of the sum over tp
    torch::Tensor auxiliary;  // as LayerOutput::auxiliary; undefined without such losses and outside training. On tp
                              // ranks other than the first it is 0 and has no graph.
  };
  // x [samples, rows, hidden]: all rows of the cp rank, the same on every tp rank (inside the tensor-parallel region).
  // With a capacity, pairs of token and choice beyond it give nothing, in training and outside it.
  // Blocks for the exchanges of moe_router.h and moe_rows.h; backward repeats "ep: combine" and "ep: dispatch" the
  // other way round. A rank without tokens takes part in all of them.
  Output forward(const torch::Tensor& x, const ForwardContext& context);

  // What the last forward did with this rank's tokens.
  struct Routing {
    std::int64_t rows_sent = 0;            // to "ep: dispatch", those that stay here included; 0 where ep is one rank
    std::int64_t rows_received = 0;        // from it; "ep: combine" carries as many back
    std::int64_t dropped = 0;              // pairs of token and choice over capacity
    std::vector<std::int64_t> per_expert;  // accepted pairs of this rank's tokens, for every expert of the model
  };
  const Routing& last_routing() const { return last_routing_; }

 private:
  struct Expert {
    std::shared_ptr<Linear> gate, up, down;
    torch::Tensor add_to(const torch::Tensor& residual, const torch::Tensor& x) const;
  };
  Expert make_expert(torch::nn::Module& parent, const char* const* names, std::int64_t width, bool routed,
                     const torch::TensorOptions& options);
  // [samples, rows, experts] in fp32 or fp64: the choice of experts must not depend on the rounding of bf16.
  torch::Tensor router_logits(const torch::Tensor& x) const;
  torch::Tensor run_experts(const torch::Tensor& rows, const std::vector<std::int64_t>& per_expert) const;

  spec::Model spec_;
  Partition partition_;
  std::shared_ptr<Linear> gate_;
  std::vector<Expert> experts_;           // this rank's
  std::unique_ptr<const Expert> shared_;  // null without shared experts
  Routing last_routing_;
};

}  // namespace lockstep::nn
