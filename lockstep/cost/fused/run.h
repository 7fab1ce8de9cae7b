// FusedRun: what the fused step of one GPU (engine/fused/FusedStep) executes, as numbers for the formulas of
// memory.h and time.h. Pure functions.
#pragma once

#include <cstdint>

#include "lockstep/plan/fused_limits.h"
#include "lockstep/plan/plan.h"
#include "lockstep/spec/job.h"
#include "lockstep/spec/model.h"

namespace lockstep::cost {

struct FusedRun {
  double layers = 0, hidden = 0, heads = 0, kv_heads = 0, head_dim = 0, ffn = 0, vocab = 0;
  double micro = 1, sequence = 0, accumulation = 1;
  plan::Recompute recompute = plan::Recompute::kNone;
  bool tied = false;          // the head's weight is the embedding's
  bool fp8 = false;           // forward and data gradients of the layers' matrices in 8 bits
  bool bf16_states = false;   // AdamW's m and v
  bool gradient_norm = true;  // computed in every step: one more pass over the gradient

  double rows() const { return micro * sequence; }
  double qkv_width() const { return (heads + 2 * kv_heads) * head_dim; }
  double attention_width() const { return heads * head_dim; }
  // A single micro-batch's gradient is not summed: it stays in bf16 but for the head's and the norms'.
  bool narrow_gradients() const { return accumulation == 1; }
  // The MLP's products that do SwiGLU on the way (kernels/cuda/fused_swiglu_gemm.h).
  bool fuses_swiglu() const {
    return !fp8 && divides(rows(), plan::fused::kTileCluster * plan::fused::kTileRows) &&
           divides(hidden, plan::fused::kTileInner) && divides(ffn, plan::fused::kTileColumns / 2);
  }
  bool fuses_swiglu_backward() const { return fuses_swiglu() && divides(ffn, plan::fused::kTileColumns); }
  // Elements, by where their gradients are: the layers' matrices and an embedding of its own, the head, the norms.
  double matrix_parameters() const { return layers * hidden * (qkv_width() + attention_width() + 3 * ffn); }
  double body_parameters() const { return (tied ? 0.0 : vocab * hidden) + matrix_parameters(); }
  double head_parameters() const { return vocab * hidden; }
  double norm_parameters() const { return (2 * layers + 1) * hidden; }
  double parameters() const { return body_parameters() + head_parameters() + norm_parameters(); }

 private:
  static bool divides(double size, int unit) { return static_cast<std::int64_t>(size) % unit == 0; }
};

// The model's sizes; one micro-batch of one sequence of the model's length.
FusedRun fused_run(const spec::Model& model);
// The same with what a plan says of it. `layout` is of one rank.
FusedRun fused_run(const spec::Model& model, const plan::Layout& layout, const plan::BatchPlan& batch);

}  // namespace lockstep::cost
