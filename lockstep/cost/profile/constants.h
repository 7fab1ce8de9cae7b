// Constants: what one (hardware, software stack, version) makes of the datasheet. A plain vector of efficiencies,
// exposures and fixed costs that the pricer multiplies into its formulas; validation/fit finds them from published
// runs, lockstep calibrate from the user's own machine. StackFacts are what a stack is known to do; they are read from
// its source, never fitted.
#pragma once

#include <span>
#include <string>

#include "lockstep/spec/job.h"

namespace lockstep::cost {

// Every member is positive; the fit works on its logarithm. Defaults are the generic prior, before any data.
struct Constants {
  // Matrix products: seconds = flops / (peak x gemm_efficiency) x (1 + m_half/m)(1 + n_half/n)(1 + k_half/k).
  double gemm_efficiency = 0.72;
  double gemm_m_half = 200;  // rows (tokens) at which the rate has fallen to half, with n and k large
  double gemm_n_half = 60;
  double gemm_k_half = 100;
  double gemm_backward = 1.05;         // seconds of a backward product over a forward one of the same FLOPs
  double fp8_speedup = 1.5;            // of a product in fp8 over bf16
  double attention_efficiency = 0.45;  // fused attention, forward, of the bf16 peak
  double attention_backward = 1.3;     // inverse efficiency of its backward relative to forward
  double attention_half = 500;         // sequence length at which fused attention reaches half its rate
  double softmax_passes = 6;           // unfused attention: passes over the [heads, s, s] scores, forward
  double pointwise_passes = 1.0;       // factor on the counted traffic of norms, activations, residuals, dropout
  double logits_passes = 5;            // passes over the logits in fp32, forward and backward together
  double misaligned_heads = 1.3;       // factor on attention where head_dim is not a multiple of 8
  // Host: a layer takes at least this long, however little it computes.
  double layer_host_seconds = 4e-4;  // forward of one layer; backward takes layer_host_backward times that
  double layer_host_backward = 1.4;
  double tp_host_seconds = 3e-5;         // of one tensor-parallel collective, beside the ring's latency
  double tp_pipeline_factor = 1.2;       // on both where a pipeline's sends stand between the collectives
  double micro_batch_seconds = 1e-3;     // fixed cost of one micro-batch on one stage
  double pipeline_scale_seconds = 1e-3;  // of a pipeline slot on 64 nodes; grows with their third power up to there
  double step_seconds = 10e-3;           // fixed cost of one optimizer step
  double optimizer_passes = 1.2;         // factor on the optimizer's counted traffic
  // Links: share of the datasheet bandwidth and latency per ring step.
  double intra_efficiency = 0.75;
  double inter_efficiency = 0.75;
  double intra_latency = 8e-6;
  double inter_latency = 20e-6;
  double gather_efficiency = 0.8;  // of all-gather and reduce-scatter between nodes, relative to all-reduce
  double node_falloff = 0.15;      // bus bandwidth between n nodes falls as (n/2)^-falloff
  // Exposed shares: 1 means nothing is hidden behind compute.
  double tp_exposed = 0.9;
  double dp_exposed = 0.5;
  double zero3_exposed = 0.3;
  double pp_exposed = 0.5;
  double cp_exposed = 0.3;
  double ep_exposed = 0.8;
  double overlap_slowdown = 1.1;  // compute under a hidden collective: Galvatron (Miao et al. 2023) measures 1.13
  double bubble = 1.0;            // factor on the schedule's idle time
  double jitter = 0.01;           // step time grows by this share per doubling of the nodes
  // Memory: factors on counted bytes, and bytes that no formula sees.
  double activation_factor = 1.0;
  double logits_factor = 1.0;
  double transient_factor = 1.0;       // on the largest temporary tensors of a layer
  double warm_up_ahead = 0.5;          // of gathered inputs, in the warm-up of a deep pipeline: share that is held
  double framework_bytes = 1.5e9;      // allocated beyond the counted terms
  double communicator_bytes = 0.25e9;  // per communicator: anchors say up to 0.5 GB for NCCL
  double reserve_factor = 1.07;        // reserved over allocated

  bool operator==(const Constants&) const = default;
};

// How a constant is named in files and how freely the fit may move it.
struct ConstantInfo {
  const char* name;
  double Constants::*member;
  double low, high;        // of the value
  double hardware_spread;  // prior standard deviation of its logarithm between kinds of hardware
  double stack_spread;     // and between software stacks on one kind
  bool is_memory;          // fitted on memory, not on time
  const char* meaning;
};
std::span<const ConstantInfo> constant_table();

// The constants as physics allows them: no link above its datasheet, no schedule with less than its own idle time, no
// product or attention, forward or backward, above the peak. What a fit found beyond explains something else.
Constants physical(Constants constants);

enum class StageSplit {
  kEven,    // layers / pp each; embedding and head come on top of the first and last stage (Megatron)
  kByCost,  // blocks, head included, dealt out by cumulative FLOPs (nanotron)
};

struct StackFacts {
  bool flash_attention = true;
  bool fused_pointwise = true;        // norms, GELU and dropout as fused kernels (Megatron JIT, TE, torch.compile)
  double reduced_gradient_bytes = 4;  // bytes per element that the data-parallel reduction moves
  double kept_gradient_bytes = 4;     // bytes per parameter of the accumulated gradient
  double bucket_gradient_bytes = 0;   // and of the buckets that replicas reduce, where those are copies
  bool master_copy = true;            // fp32 weights beside 16-bit ones
  bool dp_overlaps = true;            // gradient reduction behind backward
  bool zero_overlaps = true;          // the same for the reduce-scatter and all-gather of ZeRO-1 and 2
  // Sequence parallel: gathered block inputs stay until the device has used them. Without a pipeline that is until
  // backward, which then need not gather again; with one, as far as the host runs ahead of the device.
  bool keeps_gathered_inputs = false;
  bool reduces_each_micro_batch = true;  // ZeRO-2 and 3 scatter gradients in every micro-step, and hold only shards
  bool sequence_parallel = false;        // default where a row does not say
  StageSplit stage_split = StageSplit::kEven;
  // What is exchanged; defaults are the published stacks'.
  bool scatters_boundaries = true;       // pipeline sends are split over tp without sequence parallel too
  bool gathers_before_dispatch = false;  // sequence parallel: rows are gathered, then routed; each tp rank routes all
  bool scatters_experts = false;         // experts' gradients and weights under ZeRO as those of other weights
  bool recomputes_attention_block = false;     // selective recomputation: projections and exchanges, not the core alone
  bool keeps_gathered_until_backward = false;  // sequence parallel: block inputs are gathered once, in pipelines too
  bool reshards_after_forward = true;          // ZeRO-3 gathers weights for backward again
  bool copies_shared_keys = false;             // all-to-all sends a key head to every cp rank that reads it
  // State-space layers: tp sums the product of x_proj, and cp hands on the convolution's rows, all in the layout's
  // precision. Otherwise the state alone, in fp32.
  bool whole_state_exchanges = false;
  // Volumes count what is small beside the rest too: the step's loss, norm and number of targets, softmax statistics,
  // counts of experts, gradients that tensor-parallel ranks or the ends of a pipeline share. Known of Lockstep alone.
  bool small_exchanges = false;
  // Memory (docs/reference/prediction.md, Memory by stack). Selective recompute of torchtitan keeps the output of every
  // second product and of attention, and does the rest again; Megatron's (Korthikanti et al. 2022) drops the scores.
  bool recomputes_every_second_product = false;
  bool keeps_narrow_weights =
      true;                        // 16-bit weights beside fp32 ones; FSDP gathers them and keeps the fp32 shards alone
  double logits_share = 1;         // of the logits that are held at a time: losses in chunks hold an eighth
  double fp8_copy_bytes = 0;       // per parameter: fp8 weights, and transposed ones, that outlive their product
  double frozen_weight_bytes = 2;  // per parameter of the base under adapters; NF4 with double quantisation: 0.53
  // Of the weights; less where only adapters have gradients and optimizer state. A fact of the job, not of the stack:
  // files do not have it.
  double trained_share = 1;
  bool operator==(const StackFacts&) const = default;
};

// The engine of this repository, read from its source, with the choices that a job leaves open.
StackFacts lockstep_facts(const spec::Communication& choices = {});

// Standard deviation of log(measured / predicted), from cross-validation, and how it grows.
struct Residuals {
  double time = 0.2;          // of the step time
  double time_exposed = 0.3;  // added in quadrature x share of the step that is communication, bubble and host cost
  double memory = 0.1;        // of peak allocated bytes
  bool operator==(const Residuals&) const = default;
};

}  // namespace lockstep::cost
