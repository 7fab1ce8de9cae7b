// Token embedding: rows of a table, and the gradient of the table in a fixed order (no atomics).
#pragma once

#include <cstddef>

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

// out[t] = table[tokens[t]]. Tokens are in [0, vocab) (the caller has checked). cols: a multiple of 8.
void embedding_forward(const std::int32_t* tokens, const Bf16* table, Bf16* out, std::int64_t count, std::int64_t cols,
                       cudaStream_t stream);

// gradient[v] (+)= sum of dout[t] over tokens[t] == v, in the order of t, in fp32. Rows of absent tokens become 0,
// or stay with `accumulate`.
template <class Gradient>  // float or Bf16
struct EmbeddingBackward {
  const std::int32_t* tokens = nullptr;  // [count]
  const Bf16* dout = nullptr;            // [count, cols]
  Gradient* gradient = nullptr;          // [vocab, cols]
  bool accumulate = false;
  void* workspace = nullptr;  // embedding_workspace_bytes(count)
  std::size_t workspace_bytes = 0;
  std::int64_t count = 0, vocab = 0, cols = 0;
};
template <class Gradient>
void embedding_backward(const EmbeddingBackward<Gradient>& a, cudaStream_t stream);
std::size_t embedding_workspace_bytes(std::int64_t count);

}  // namespace lockstep::kernels::cuda
