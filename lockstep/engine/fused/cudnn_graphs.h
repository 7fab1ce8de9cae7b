// Causal attention as graphs of cuDNN that we build ourselves (through the cudnn-frontend headers, PyPI's
// nvidia-cudnn-frontend): inputs and gradients lie where the caller says, so gradients come out packed. libtorch's
// binding of the same kernels returns three tensors.
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

// One stream, one thread. Calls enqueue and may be captured.
class CudnnGraphs {
 public:
  // Null where the build has no cudnn-frontend, or where cuDNN has no kernel for the shape.
  static std::unique_ptr<CudnnGraphs> make(const AttentionShape& shape, cudaStream_t stream);
  virtual ~CudnnGraphs() = default;

  virtual std::size_t workspace_bytes() const = 0;  // of either call
  // qkv [tokens, heads + 2 * kv_heads, dim] -> out [tokens, heads, dim]; statistics [batch, heads, seq].
  virtual void forward(const Bf16* qkv, Bf16* out, float* statistics, void* workspace) = 0;
  // dqkv is packed like qkv.
  virtual void backward(const Bf16* qkv, const Bf16* out, const float* statistics, const Bf16* dout, Bf16* dqkv,
                        void* workspace) = 0;
};

}  // namespace lockstep::engine::cuda
