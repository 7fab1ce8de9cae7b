// Seconds of the fused step of one GPU (engine/fused/FusedStep), from what it executes: products by shape, cuDNN's
// attention, streaming kernels by the bytes they move, AdamW. A few constants say what the device reaches of its
// datasheet inside a training step, where it works at its power limit; they are fitted to whole steps (fit.cpp),
// for a product alone for a moment runs 5 to 13% faster. Pure functions that allocate nothing.
#pragma once

#include <array>
#include <span>

#include "lockstep/cost/fused/run.h"
#include "lockstep/plan/plan.h"
#include "lockstep/spec/cluster.h"

namespace lockstep::cost {

// Every member is positive; the fit works on its logarithm.
struct FusedConstants {
  // Products: 2 m n k / (bf16 peak x efficiency) x (1 + k_half / k) x (1 + output_half / (m n)).
  double forward_efficiency = 0.68;
  double data_gradient_efficiency = 0.68;
  double weight_gradient_efficiency = 0.66;
  double gemm_k_half = 100;       // inner size at which a product runs at half its rate
  double gemm_output_half = 5e4;  // elements of the result at which it does
  double fp8_speedup = 1.6;       // of forward and data gradients in 8 bits
  // Causal attention: flops / (bf16 peak x efficiency) x (1 + dim_half / head_dim) x (1 + sequence_half / sequence).
  double attention_efficiency = 0.6;
  double attention_backward_efficiency = 0.5;
  double attention_dim_half = 32;
  double attention_sequence_half = 500;
  // Bytes / (memory bandwidth x efficiency).
  double stream_efficiency = 0.82;    // norms, RoPE, SwiGLU, embedding, quantising
  double loss_efficiency = 0.7;       // cross-entropy over a chunk's logits
  double optimizer_efficiency = 0.8;  // AdamW
  double epilogue_share =
      0.5;  // of the memory traffic of a product's epilogue, what the products beside it do not hide
  double kernel_seconds = 2e-6;  // of every kernel beyond its work: launch, first loads, last stores
  bool operator==(const FusedConstants&) const = default;
};

struct FusedConstantInfo {
  const char* name;
  double FusedConstants::*member;
  double spread;  // prior standard deviation of its logarithm
  const char* meaning;
};
std::span<const FusedConstantInfo> fused_constant_table();

// What the step does, by the names its timeline has (StepTimeline::Operation).
enum class FusedOperation {
  kQkv,
  kAttentionOut,
  kGateUp,
  kDown,
  kHead,
  kQkvData,
  kAttentionOutData,
  kGateUpData,
  kDownData,
  kQkvWeight,
  kAttentionOutWeight,
  kGateUpWeight,
  kDownWeight,
  kHeadBackward,
  kAttention,
  kAttentionBackward,
  kNorm,
  kNormBackward,
  kRope,
  kRopeBackward,
  kSwiglu,
  kSwigluBackward,
  kGateUpSwiglu,
  kDownDataSwiglu,
  kCrossEntropy,
  kEmbedding,
  kEmbeddingBackward,
  kQuantizeAttention,
  kQuantizeWeights,
  kAdamW,
  kCount
};
const char* to_string(FusedOperation operation);

// Seconds of all calls of one step, each by itself, by operation.
using FusedOperationSeconds = std::array<double, static_cast<std::size_t>(FusedOperation::kCount)>;
FusedOperationSeconds fused_operation_seconds(const FusedRun& run, const FusedConstants& constants,
                                              const spec::Device& device);

// The step: one operation after the other.
struct FusedSeconds {
  double forward = 0, backward = 0, weight_gradient = 0, optimizer = 0;  // weight_gradient is part of backward
  double total() const { return forward + backward + optimizer; }
};
FusedSeconds fused_seconds(const FusedRun& run, const FusedConstants& constants, const spec::Device& device);

}  // namespace lockstep::cost
