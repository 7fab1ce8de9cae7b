// y = gelu(x + bias), the tanh form, over rows.
#pragma once

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

struct BiasGeluForward {
  const Bf16* x = nullptr;          // [rows, cols]
  const Bf16* bias = nullptr;       // [cols]
  Bf16* y = nullptr;                // [rows, cols]; may be x
  std::int64_t rows = 0, cols = 0;  // cols: a multiple of 8
};
void bias_gelu_forward(const BiasGeluForward& a, cudaStream_t stream);

struct BiasGeluBackward {
  const Bf16* x = nullptr;     // [rows, cols], before the bias
  const Bf16* bias = nullptr;  // [cols]
  const Bf16* dy = nullptr;    // [rows, cols]
  Bf16* dx = nullptr;          // [rows, cols]; may be x or dy
  Bf16* y = nullptr;           // the forward value again; may be dy where dx is not; null: not wanted
  float* dbias = nullptr;      // [cols], column sums of dx before rounding, in a fixed order
  bool accumulate = false;     // dbias is added to
  float* workspace = nullptr;  // bias_gelu_workspace_floats(cols)
  std::int64_t rows = 0, cols = 0;
};
void bias_gelu_backward(const BiasGeluBackward& a, cudaStream_t stream);
std::int64_t bias_gelu_workspace_floats(std::int64_t cols);

}  // namespace lockstep::kernels::cuda
