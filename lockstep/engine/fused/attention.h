// Causal attention on packed q, k, v through cuDNN: by graphs of our own where they can be built (cudnn_graphs.h), else
// as libtorch binds it, without autograd. libtorch stays behind this header. Buffers of outputs and workspaces come
// from its caching allocator.
#pragma once

#include <optional>

#include "lockstep/engine/fused/cudnn_graphs.h"

namespace lockstep::engine::cuda {

// Everything is enqueued on one stream, which nobody else uses with libtorch's allocator: a graph captured here keeps
// using the blocks it was captured with.
class Attention {
 public:
  // `slots`: how many forward results are held at a time (one per layer). `own_graphs` false: libtorch's binding.
  Attention(const AttentionShape& shape, int slots, bool own_graphs, cudaStream_t stream);
  ~Attention();
  Attention(const Attention&) = delete;
  Attention& operator=(const Attention&) = delete;

  // qkv [tokens, heads + 2 * kv_heads, dim] -> [tokens, heads, dim], valid until release(slot) or the next forward.
  const Bf16* forward(int slot, const Bf16* qkv);
  const Bf16* output(int slot) const;
  struct Gradients {
    const Bf16 *dq, *dk, *dv;  // [tokens, heads or kv_heads, dim], valid until the next backward
  };
  // dout [tokens, heads, dim]; qkv as given to forward. Own graphs write dqkv, which is packed like qkv, and return
  // nothing; libtorch's binding leaves dqkv alone.
  std::optional<Gradients> backward(int slot, const Bf16* qkv, const Bf16* dout, Bf16* dqkv);
  void release(int slot);

  // Bytes libtorch's allocator held at most, and its peak since the start.
  std::size_t peak_bytes() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::engine::cuda
