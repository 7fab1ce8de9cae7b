// Forward, loss and backward of the dense model over one micro-batch, enqueued on one stream.
#pragma once

#include "lockstep/engine/fused/activations.h"
#include "lockstep/engine/fused/attention.h"
#include "lockstep/engine/fused/faster_way.h"
#include "lockstep/engine/fused/fp8.h"
#include "lockstep/engine/fused/gemm.h"
#include "lockstep/engine/fused/parameters.h"
#include "lockstep/engine/fused/step_timeline.h"

namespace lockstep::engine::cuda {

// What the passes work on; all of it outlives them.
struct FusedParts {
  const FusedShape& shape;
  const FusedOptions& options;
  const FusedParameters& parameters;
  const FusedActivations& activations;
  Gemm& gemm;
  Attention& attention;
  FusedFp8* fp8;  // null: bf16
  FusedWays& fused;
  StepTimeline& timeline;
  cudaStream_t stream;
};

// Scratch and results of an evaluation.
struct FusedEvaluation {
  void want(DeviceArena& arena, std::int64_t rows) {
    arena.want(&hits, rows);
    arena.want(&sums, 2);
    arena.want(&one, 1);
  }
  float* hits = nullptr;  // [rows]
  float* sums = nullptr;  // of losses, of hits
  float* one = nullptr;   // the scale of losses
};

class FusedPasses {
 public:
  explicit FusedPasses(const FusedParts& parts) : p_(parts) {}

  // tokens, targets: device, [rows]; activations.loss_scale is set. `accumulate`: gradients and loss are added to.
  // `layers` below the model's number runs only the first ones (for choosing algorithms).
  void micro_step(const std::int32_t* tokens, const std::int32_t* targets, bool accumulate, std::int64_t layers);
  // Forward and loss only (dense_evaluation.cpp); `fp8` is null. Attention's outputs are not held afterwards.
  void evaluate(const std::int32_t* tokens, const std::int32_t* targets, const FusedEvaluation& to);

 private:
  void forward_layer(std::int64_t layer, Bf16* out);
  // The second half of backward's work needs no `out`: forward again up to h.
  void forward_attention(std::int64_t layer);
  void forward_mlp(std::int64_t layer, Bf16* out);
  void loss_and_head(const std::int32_t* targets, bool accumulate, std::int64_t layers);
  void backward_mlp(std::int64_t layer, bool accumulate);
  void backward_attention(std::int64_t layer, bool accumulate);

  // Two operations that can be one: by the faster way in bf16.
  void qkv_and_rope(std::int64_t layer);
  void gate_up_and_swiglu(std::int64_t layer, bool with_h);
  void down_and_swiglu_backward(std::int64_t layer);

  // Rotary positions of packed q and k, in place; `back`: of their gradients.
  void turn(Bf16* qkv, bool back);
  void pack_turned_back(std::int64_t layer, const Attention::Gradients& gradients);
  void swiglu(std::int64_t layer);
  void swiglu_backward(std::int64_t layer);
  void linear(std::int64_t layer, Linear which, const Bf16* x, Bf16* y, const Bf16* residual, const char* name);
  void data_gradient(std::int64_t layer, Linear which, const Bf16* dy, Bf16* dx, const char* name);
  void weight_gradient(std::int64_t layer, Linear which, const Bf16* dy, const Bf16* x, bool accumulate,
                       const char* name);
  void norm(const Bf16* x, const Placed& weight, Bf16* y, float* rstd, std::int64_t layer, Linear reader);
  void norm_backward(const Bf16* x, const Placed& weight, const float* rstd, bool with_residual, Bf16* y,
                     bool accumulate, const kernels::cuda::Fp8Output& dx8);
  kernels::cuda::Fp8Output output8(std::int64_t layer, Linear which, FusedFp8::Role role) const;
  void settle(std::int64_t layer, Linear which, FusedFp8::Role role, const Bf16* x, std::int64_t count);
  // Whether a bf16 value that only an 8-bit GEMM reads need not be written.
  bool only_fp8() const { return p_.fp8 != nullptr && !p_.fp8->current() && p_.options.recompute != Recompute::kNone; }

  FusedParts p_;
};

}  // namespace lockstep::engine::cuda
