// Causal attention on packed q, k, v through cuDNN, as libtorch binds it, without autograd. libtorch stays behind this
// header. Buffers of outputs and workspaces come from libtorch's caching allocator.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::engine::cuda {

using kernels::cuda::Bf16;

struct AttentionShape {
  std::int64_t batch = 0, seq = 0, heads = 0, kv_heads = 0, dim = 0;
};

// Everything is enqueued on one stream, which nobody else uses with libtorch's allocator: a graph captured here keeps
// using the blocks it was captured with.
class Attention {
 public:
  // `slots`: how many forward results are held at a time (one per layer).
  Attention(const AttentionShape& shape, int slots, cudaStream_t stream);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  // qkv [tokens, heads + 2 * kv_heads, dim] -> [tokens, heads, dim], valid until release(slot) or the next forward.
  const Bf16* forward(int slot, const Bf16* qkv);
  const Bf16* output(int slot) const;
  struct Gradients {
    const Bf16 *dq, *dk, *dv;  // [tokens, heads or kv_heads, dim], valid until the next backward
  };
  // dout [tokens, heads, dim]; qkv as given to forward.
  Gradients backward(int slot, const Bf16* qkv, const Bf16* dout);
  void release(int slot);

  // Bytes libtorch's allocator held at most, and its peak since the start.
  std::size_t peak_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::engine::cuda
