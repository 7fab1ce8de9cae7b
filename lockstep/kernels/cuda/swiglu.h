// h = silu(gate) * up over rows of [gate | up], as one GEMM writes them.
#pragma once

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

struct SwigluForward {
  const Bf16* gate_up = nullptr;  // [rows, 2, cols]
  Bf16* h = nullptr;              // [rows, cols]; null where only h8 is wanted
  Fp8Output h8;
  std::int64_t rows = 0, cols = 0;  // cols: a multiple of 8
};
void swiglu_forward(const SwigluForward& a, cudaStream_t stream);

struct SwigluBackward {
  const Bf16* gate_up = nullptr;  // [rows, 2, cols]
  const Bf16* dh = nullptr;       // [rows, cols]
  Bf16* dgate_up = nullptr;       // [rows, 2, cols]; may be gate_up
  Fp8Output dgate_up8;
  Bf16* h = nullptr;  // [rows, cols], the forward value again; may be dh; null: not wanted
  std::int64_t rows = 0, cols = 0;
};
void swiglu_backward(const SwigluBackward& a, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
