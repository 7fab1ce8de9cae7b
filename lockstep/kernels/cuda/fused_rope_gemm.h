// The product that makes queries, keys and values, with rotary positions applied before the results reach device
// memory. An own kernel for Hopper; the bits are those of a product rounded to bf16 and followed by rope, but for the
// order in which the product is summed.
#pragma once

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

// qkv = x w^T, then the first `rotated` heads are rotated as rope does.
struct FusedRope {
  const Bf16* x = nullptr;     // [rows, hidden]
  const Bf16* w = nullptr;     // [heads * dim, hidden]
  Bf16* qkv = nullptr;         // [rows, heads, dim]
  const float* cos = nullptr;  // [seq, dim / 2]
  const float* sin = nullptr;
  std::int64_t rows = 0, hidden = 0, seq = 0;
  std::int64_t heads = 0, rotated = 0, dim = 0;  // heads: of q, k and v
};
// Whether the current device and these sizes are served: compute capability 9.0, rows a multiple of 256, hidden of 64,
// dim 64 or 128, heads * dim a multiple of 256.
bool fused_rope_fits(const FusedRope& a);
void fused_rope(const FusedRope& a, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
