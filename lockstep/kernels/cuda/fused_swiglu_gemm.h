// The two products of a gated MLP that end in SwiGLU, or begin its backward, with SwiGLU done before the product's
// results reach device memory. Own kernels for Hopper; the bits are those of a product rounded to bf16 and followed by
// swiglu_forward or swiglu_backward, but for the order in which the product is summed.
#pragma once

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

// Whether the current device and these sizes are served: compute capability 9.0, rows a multiple of 256, hidden of 64,
// ffn of 128 (forward) or 256 (backward).
bool fused_swiglu_forward_fits(std::int64_t rows, std::int64_t hidden, std::int64_t ffn);
bool fused_swiglu_backward_fits(std::int64_t rows, std::int64_t hidden, std::int64_t ffn);

// gate_up = x w^T, h = silu(gate) * up.
struct FusedSwigluForward {
  const Bf16* x = nullptr;  // [rows, hidden]
  const Bf16* w = nullptr;  // [2 ffn, hidden]: gate's rows, then up's
  Bf16* gate_up = nullptr;  // [rows, 2, ffn]
  Bf16* h = nullptr;        // [rows, ffn]; null: not wanted
  std::int64_t rows = 0, hidden = 0, ffn = 0;
};
void fused_swiglu_forward(const FusedSwigluForward& a, cudaStream_t stream);

// dh = dy w, then gate_up becomes [dgate | dup].
struct FusedSwigluBackward {
  const Bf16* dy = nullptr;  // [rows, hidden]
  const Bf16* w = nullptr;   // [hidden, ffn]
  Bf16* gate_up = nullptr;   // [rows, 2, ffn], changed in place
  Bf16* h = nullptr;         // [rows, ffn], the forward value again; null: not wanted
  std::int64_t rows = 0, hidden = 0, ffn = 0;
};
void fused_swiglu_backward(const FusedSwigluBackward& a, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
