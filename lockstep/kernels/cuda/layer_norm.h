// Layer normalisation of rows (Ba et al. 2016) in bf16 with fp32 arithmetic.
#pragma once

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

constexpr std::int64_t kLayerNormMaxCols = 8192;  // and a multiple of 8

// y = (x - mean) * rstd * weight + bias; with `delta`, sum = x + delta (rounded to bf16) is what is normalised.
struct LayerNormForward {
  const Bf16* x = nullptr;       // [rows, cols]
  const Bf16* delta = nullptr;   // [rows, cols]; null: nothing is added
  const Bf16* weight = nullptr;  // [cols]
  const Bf16* bias = nullptr;    // [cols]
  Bf16* sum = nullptr;           // [rows, cols], needed with delta, may be x
  Bf16* y = nullptr;             // [rows, cols]
  float* mean = nullptr;         // [rows]
  float* rstd = nullptr;         // [rows]
  float epsilon = 1e-5f;
  std::int64_t rows = 0, cols = 0;
};
void layer_norm_forward(const LayerNormForward& a, cudaStream_t stream);

// dx = dresidual + the gradient through the norm; dweight and dbias by two stages, in a fixed order.
struct LayerNormBackward {
  const Bf16* x = nullptr;  // [rows, cols], what was normalised
  const Bf16* weight = nullptr;
  const float* mean = nullptr;
  const float* rstd = nullptr;
  const Bf16* dy = nullptr;         // [rows, cols]
  const Bf16* dresidual = nullptr;  // [rows, cols]; null: nothing is added
  Bf16* dx = nullptr;               // [rows, cols]; may be dresidual or dy
  float* dweight = nullptr;         // [cols]
  float* dbias = nullptr;           // [cols]
  bool accumulate = false;          // dweight and dbias are added to
  float* workspace = nullptr;       // layer_norm_workspace_floats(cols)
  std::int64_t rows = 0, cols = 0;
};
void layer_norm_backward(const LayerNormBackward& a, cudaStream_t stream);
std::int64_t layer_norm_workspace_floats(std::int64_t cols);

}  // namespace lockstep::kernels::cuda
