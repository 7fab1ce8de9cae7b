// y = gelu(x + bias) with the error function (BERT's), over rows; bf16 with fp32 arithmetic.
#pragma once

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

struct GeluErfForward {
  const Bf16* x = nullptr;          // [rows, cols]
  const Bf16* bias = nullptr;       // [cols]; null: nothing is added
  Bf16* y = nullptr;                // [rows, cols]; may be x
  std::int64_t rows = 0, cols = 0;  // cols: a multiple of 8
};
void gelu_erf_forward(const GeluErfForward& a, cudaStream_t stream);

struct GeluErfBackward {
  const Bf16* x = nullptr;     // [rows, cols], before the bias
  const Bf16* bias = nullptr;  // [cols] or null
  const Bf16* dy = nullptr;    // [rows, cols]
  Bf16* dx = nullptr;          // [rows, cols]; may be x or dy
  Bf16* dbias = nullptr;       // [cols], column sums of dx before rounding, in a fixed order; null: not wanted
  float* workspace = nullptr;  // gelu_erf_workspace_floats(cols), with dbias
  std::int64_t rows = 0, cols = 0;
};
void gelu_erf_backward(const GeluErfBackward& a, cudaStream_t stream);
std::int64_t gelu_erf_workspace_floats(std::int64_t cols);

}  // namespace lockstep::kernels::cuda
