// The end of a post-norm block (BERT): y = layer_norm(residual + dropout(x + bias)), forward and backward in one pass
// each. bf16 with fp32 arithmetic.
#pragma once

#include "lockstep/kernels/cuda/dropout.h"

namespace lockstep::kernels::cuda {

// A warp holds a row: columns are a multiple of 256, at most 1024. For other widths compose dropout() and layer_norm.h.
constexpr std::int64_t kAddNormMaxCols = 1024;
constexpr bool add_norm_takes(std::int64_t cols) { return cols > 0 && cols % 256 == 0 && cols <= kAddNormMaxCols; }

struct AddNormForward {
  const Bf16* x = nullptr;            // [rows, cols]
  const Bf16* bias = nullptr;         // [cols]; null: nothing is added
  const Bf16* residual = nullptr;     // [rows, cols]
  const Bf16* norm_weight = nullptr;  // [cols]
  const Bf16* norm_bias = nullptr;    // [cols]
  Bf16* sum = nullptr;                // [rows, cols] what is normalised, rounded; may be x
  Bf16* y = nullptr;                  // [rows, cols]
  float* mean = nullptr;              // [rows]
  float* rstd = nullptr;              // [rows]
  std::uint8_t* kept = nullptr;       // [rows, cols / 8] the mask in bits, for backward; null: it is not kept
  float epsilon = 1e-5f;
  DropoutMask mask;
  std::int64_t rows = 0, cols = 0;
};
void add_norm_forward(const AddNormForward& a, cudaStream_t stream);

struct AddNormBackward {
  const Bf16* sum = nullptr;
  const Bf16* norm_weight = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const std::uint8_t* kept =
      nullptr;                 // as forward left it; null: the mask is drawn again, which takes longer than reading
  const Bf16* dy = nullptr;    // [rows, cols]
  Bf16* dresidual = nullptr;   // [rows, cols]; may be dy
  Bf16* dx = nullptr;          // [rows, cols]; null where the mask drops nothing: it is dresidual
  Bf16* sums = nullptr;        // [3, cols]: gradients of norm_weight and norm_bias, column sums of dx (bias)
  float* workspace = nullptr;  // add_norm_workspace_floats(cols)
  DropoutMask mask;
  std::int64_t rows = 0, cols = 0;
};
void add_norm_backward(const AddNormBackward& a, cudaStream_t stream);
std::int64_t add_norm_workspace_floats(std::int64_t cols);

}  // namespace lockstep::kernels::cuda
