// Rotary position embedding (Su et al. 2021), rotate_half convention, in place on packed heads.
#pragma once

#include <vector>

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

// The first `rotated` of `heads` heads of every token are rotated by the angle of their position, token % seq: those of
// q and k where they lie packed as [tokens, q heads + k heads + v heads, dim].
struct Rope {
  Bf16* x = nullptr;                                                  // [tokens, heads, dim]
  const float* cos = nullptr;                                         // [seq, dim/2]
  const float* sin = nullptr;                                         // [seq, dim/2]
  bool inverse = false;                                               // turn back: the gradient
  std::int64_t tokens = 0, seq = 0, heads = 0, rotated = 0, dim = 0;  // dim: a multiple of 16
};
void rope(const Rope& a, cudaStream_t stream);

// Inverse RoPE: the gradients of q, k and v as attention returns them, each [tokens, its heads, dim], are rotated back
// (v is only moved) and packed as [tokens, q heads + k heads + v heads, dim].
struct RopeBackward {
  const Bf16* dq = nullptr;
  const Bf16* dk = nullptr;
  const Bf16* dv = nullptr;
  Bf16* packed = nullptr;
  Fp8Output packed8;
  const float* cos = nullptr;  // [seq, dim/2]
  const float* sin = nullptr;  // [seq, dim/2]
  std::int64_t tokens = 0, seq = 0, heads = 0, kv_heads = 0, dim = 0;
};
void rope_backward(const RopeBackward& a, cudaStream_t stream);

// theta^(-2i/dim) for i < dim/2, in float as every implementation in the field keeps them.
std::vector<float> rope_frequencies(std::int64_t dim, double theta);
// cos and sin of position * frequency, [seq, frequencies], computed in double on the host and copied (the call waits).
void rope_tables(float* cos, float* sin, std::int64_t seq, const std::vector<float>& frequencies, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
