// Root-mean-square normalisation of rows (Zhang & Sennrich 2019) in bf16 with fp32 arithmetic.
#pragma once

#include "lockstep/kernels/cuda/types.h"
#include "lockstep/plan/fused_limits.h"

namespace lockstep::kernels::cuda {

// Columns: a multiple of 8, at most kRmsNormMaxCols.
constexpr std::int64_t kRmsNormMaxCols = plan::fused::kLargestHidden;

// y[r, c] = x[r, c] * rstd[r] * weight[c], rstd = 1/sqrt(mean(x^2) + epsilon).
struct RmsNormForward {
  const Bf16* x = nullptr;       // [rows, cols]
  const Bf16* delta = nullptr;   // [rows, cols] added to x before; null: nothing is added
  const Bf16* weight = nullptr;  // [cols]
  Bf16* sum = nullptr;           // [rows, cols], x + delta rounded to bf16; needed with delta, may be x
  Bf16* y = nullptr;             // [rows, cols]; null where only y8 is wanted
  float* rstd = nullptr;         // [rows]
  Fp8Output y8;                  // y again
  float epsilon = 1e-5f;
  std::int64_t rows = 0, cols = 0;
};
void rms_norm_forward(const RmsNormForward& a, cudaStream_t stream);

// dx = dresidual + the gradient through the norm; dweight by two stages, in a fixed order.
struct RmsNormBackward {
  const Bf16* x = nullptr;          // [rows, cols], what was normalised
  const Bf16* weight = nullptr;     // [cols]
  const float* rstd = nullptr;      // [rows]
  const Bf16* dy = nullptr;         // [rows, cols]
  const Bf16* dresidual = nullptr;  // [rows, cols]; null: nothing is added
  Bf16* dx = nullptr;               // [rows, cols]; may be dresidual or dy
  Fp8Output dx8;                    // dx again
  Bf16* y = nullptr;                // [rows, cols], the forward value again; null: not wanted
  float* dweight = nullptr;         // [cols]
  bool accumulate = false;          // dweight is added to
  float* workspace = nullptr;       // rms_norm_workspace_floats(cols)
  std::int64_t rows = 0, cols = 0;
};
void rms_norm_backward(const RmsNormBackward& a, cudaStream_t stream);
std::int64_t rms_norm_workspace_floats(std::int64_t cols);

}  // namespace lockstep::kernels::cuda
