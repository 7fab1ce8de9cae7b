#include "lockstep/cost/profile/constants.h"

#include <algorithm>
#include <array>

namespace lockstep::cost {
namespace {

using C = Constants;
constexpr std::array<ConstantInfo, 41> kTable{{
    {"gemm_efficiency", &C::gemm_efficiency, 0.2, 0.98, 0.15, 0.15, false, "share of the bf16 peak in large products"},
    {"gemm_m_half", &C::gemm_m_half, 5, 4000, 0.6, 0.4, false, "rows at which a product runs at half its rate"},
    {"gemm_n_half", &C::gemm_n_half, 1, 2000, 0.6, 0.4, false, "columns at which it does"},
    {"gemm_k_half", &C::gemm_k_half, 1, 2000, 0.6, 0.4, false, "inner size at which it does"},
    {"gemm_backward", &C::gemm_backward, 0.85, 1.6, 0.08, 0.08, false, "backward over forward, per FLOP"},
    {"fp8_speedup", &C::fp8_speedup, 1.0, 2.0, 0.15, 0.15, false, "fp8 products over bf16 ones"},
    {"attention_efficiency", &C::attention_efficiency, 0.08, 0.9, 0.3, 0.3, false, "fused attention, share of peak"},
    {"attention_backward", &C::attention_backward, 0.8, 3, 0.2, 0.2, false, "its backward, per FLOP"},
    {"attention_half", &C::attention_half, 20, 4000, 0.5, 0.5, false, "sequence at which it runs at half its rate"},
    {"softmax_passes", &C::softmax_passes, 1, 40, 0.4, 0.4, false, "unfused attention: passes over the scores"},
    {"pointwise_passes", &C::pointwise_passes, 0.2, 8, 0.4, 0.5, false, "factor on the traffic of pointwise kernels"},
    {"logits_passes", &C::logits_passes, 0.5, 30, 0.4, 0.5, false, "passes over the logits in fp32"},
    {"misaligned_heads", &C::misaligned_heads, 1, 4, 0.3, 0.3, false, "head_dim not a multiple of 8: factor"},
    {"layer_host_seconds", &C::layer_host_seconds, 1e-5, 8e-3, 0.4, 0.6, false, "host cost of a layer, forward"},
    {"layer_host_backward", &C::layer_host_backward, 0.5, 4, 0.2, 0.3, false, "host cost of backward over forward"},
    {"tp_host_seconds", &C::tp_host_seconds, 1e-6, 3e-3, 0.4, 0.8, false, "host cost of a tensor-parallel collective"},
    {"tp_pipeline_factor", &C::tp_pipeline_factor, 0.5, 20, 0.3, 0.8, false, "the same between pipeline sends: factor"},
    {"micro_batch_seconds", &C::micro_batch_seconds, 1e-5, 5e-2, 0.5, 0.8, false, "fixed cost of a micro-batch"},
    {"pipeline_scale_seconds", &C::pipeline_scale_seconds, 1e-5, 0.05, 0.5, 0.8, false, "pipeline slot on 64 nodes"},
    {"step_seconds", &C::step_seconds, 1e-4, 1, 0.5, 0.8, false, "fixed cost of a step"},
    {"optimizer_passes", &C::optimizer_passes, 0.5, 10, 0.3, 0.5, false, "factor on the optimizer's traffic"},
    {"intra_efficiency", &C::intra_efficiency, 0.1, 1.0, 0.25, 0.25, false, "share of the link inside a node"},
    {"inter_efficiency", &C::inter_efficiency, 0.05, 1.0, 0.3, 0.4, false, "share of the NICs"},
    {"intra_latency", &C::intra_latency, 1e-6, 4e-4, 0.4, 0.6, false, "seconds per ring step inside a node"},
    {"inter_latency", &C::inter_latency, 2e-6, 1e-3, 0.4, 0.6, false, "seconds per ring step between nodes"},
    {"gather_efficiency", &C::gather_efficiency, 0.05, 1.0, 0.3, 0.4, false,
     "all-gather between nodes over all-reduce"},
    {"node_falloff", &C::node_falloff, 0.001, 1.0, 0.5, 0.8, false, "bandwidth over n nodes falls as (n/2)^-this"},
    {"tp_exposed", &C::tp_exposed, 0.02, 1.5, 0.3, 0.5, false, "share of tensor-parallel traffic not hidden"},
    {"dp_exposed", &C::dp_exposed, 0.02, 2.0, 0.4, 0.6, false, "share of the gradient reduction not hidden"},
    {"zero3_exposed", &C::zero3_exposed, 0.01, 1.5, 0.4, 0.6, false, "share of ZeRO-3 traffic not hidden"},
    {"pp_exposed", &C::pp_exposed, 0.01, 4, 0.4, 0.8, false, "share of pipeline sends not hidden"},
    {"cp_exposed", &C::cp_exposed, 0.01, 1.5, 0.4, 0.5, false, "share of context-parallel traffic not hidden"},
    {"ep_exposed", &C::ep_exposed, 0.05, 2, 0.4, 0.5, false, "share of expert all-to-all not hidden"},
    {"overlap_slowdown", &C::overlap_slowdown, 1.0, 1.6, 0.05, 0.05, false, "compute under a hidden collective"},
    {"bubble", &C::bubble, 1.0, 2.0, 0.1, 0.2, false, "factor on the schedule's idle time"},
    {"jitter", &C::jitter, 1e-4, 0.08, 0.4, 0.6, false, "growth of the step per doubling of the nodes"},
    {"activation_factor", &C::activation_factor, 0.4, 2.5, 0.1, 0.15, true, "factor on counted activations"},
    {"logits_factor", &C::logits_factor, 0.1, 5, 0.1, 0.1, true, "factor on counted logits"},
    {"transient_factor", &C::transient_factor, 0.05, 10, 0.4, 0.6, true, "factor on the largest temporaries"},
    {"warm_up_ahead", &C::warm_up_ahead, 0.02, 1.0, 0.3, 0.3, true, "gathered inputs held in a pipeline's warm-up"},
    {"framework_bytes", &C::framework_bytes, 1e7, 1e10, 0.5, 0.8, true, "allocated beyond the counted terms"},
}};

}  // namespace

std::span<const ConstantInfo> constant_table() { return kTable; }

Constants physical(Constants constants) {
  for (double C::*share : {&C::gemm_efficiency, &C::attention_efficiency, &C::intra_efficiency, &C::inter_efficiency,
                           &C::gather_efficiency}) {
    constants.*share = std::min(constants.*share, 1.0);
  }
  constants.bubble = std::max(constants.bubble, 1.0);
  constants.gemm_backward = std::max(constants.gemm_backward, constants.gemm_efficiency);
  constants.attention_backward = std::max(constants.attention_backward, constants.attention_efficiency);
  return constants;
}

StackFacts lockstep_facts(const spec::Communication& choices) {
  StackFacts facts;
  facts.reduces_each_micro_batch = choices.reduce_each_micro_step;  // parallel::Chunk
  facts.reshards_after_forward = choices.reshard_after_forward;
  facts.scatters_boundaries = false;           // parallel::ParallelModel::stream_shape
  facts.gathers_before_dispatch = true;        // nn::MoeMlp stands inside the tensor-parallel region
  facts.scatters_experts = true;               // parallel::FlatShard
  facts.recomputes_attention_block = true;     // parallel::Chunk recomputes whole units
  facts.keeps_gathered_until_backward = true;  // autograd keeps the gathered input of a product
  facts.copies_shared_keys = true;             // nn::context_attention
  facts.whole_state_exchanges = true;          // nn::make_mamba
  facts.small_exchanges = true;
  return facts;
}

}  // namespace lockstep::cost
