#include <algorithm>

#include "lockstep/kernels/cuda/column_sums.h"
#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/gelu_erf.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowBlocks = 512;  // blocks that share the rows of one stripe of columns in backward
constexpr float kRootHalf = 0.7071067811865476f, kRootTwoPi = 0.3989422804014327f;  // sqrt(1/2), 1 / sqrt(2 pi)

__device__ inline void load_bias(const Bf16* bias, std::int64_t column, float (&f)[kVector]) {
#pragma unroll
  for (float& value : f) value = 0;
  if (bias != nullptr) load_as_floats(bias + column, f);
}

__global__ void __launch_bounds__(kThreads) forward_kernel(GeluErfForward a, unsigned vectors, unsigned total) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= total) return;
  const unsigned row = index / vectors, column = (index - row * vectors) * kVector;
  const std::int64_t place = row * a.cols + column;
  float f[kVector], bias[kVector];
  load_as_floats(a.x + place, f);
  load_bias(a.bias, column, bias);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    const float x = f[i] + bias[i];
    f[i] = 0.5f * x * (1.0f + erff(x * kRootHalf));
  }
  store(a.y + place, pack(f));
}

// A block has a stripe of columns and every gridDim.x-th row.
__global__ void __launch_bounds__(kThreads) backward_kernel(GeluErfBackward a) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kVector;
  if (column >= a.cols) return;
  float bias[kVector], dbias[kVector] = {};
  load_bias(a.bias, column, bias);
#pragma unroll 2
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const std::int64_t place = row * a.cols + column;
    const Vector in = load(a.x + place), dy = load(a.dy + place);
    float f[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float x = in[i] + bias[i];
      const float slope = 0.5f * (1.0f + erff(x * kRootHalf)) + x * kRootTwoPi * __expf(-0.5f * x * x);
      f[i] = dy[i] * slope;
      dbias[i] += f[i];
    }
    store(a.dx + place, pack(f));
  }
  if (a.dbias != nullptr) store_floats(a.workspace + blockIdx.x * a.cols + column, dbias);
}

}  // namespace

void gelu_erf_forward(const GeluErfForward& a, cudaStream_t stream) {
  require(a.cols > 0 && a.cols % kVector == 0, "gelu_erf_forward", "columns must be a multiple of 8");
  const std::int64_t vectors = a.cols / kVector, total = a.rows * vectors;
  require(total < kIndexLimit, "gelu_erf_forward", "too many elements for one launch");
  if (total == 0) return;
  forward_kernel<<<static_cast<unsigned>(ceil_div(total, kThreads)), kThreads, 0, stream>>>(
      a, static_cast<unsigned>(vectors), static_cast<unsigned>(total));
  LOCKSTEP_CUDA_LAUNCHED();
}

std::int64_t gelu_erf_workspace_floats(std::int64_t cols) { return kRowBlocks * cols; }

void gelu_erf_backward(const GeluErfBackward& a, cudaStream_t stream) {
  require(a.cols > 0 && a.cols % kVector == 0, "gelu_erf_backward", "columns must be a multiple of 8");
  const std::int64_t blocks = std::min<std::int64_t>(a.rows, kRowBlocks);
  if (blocks > 0) {
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(ceil_div(a.cols, kThreads * kVector)));
    backward_kernel<<<grid, kThreads, 0, stream>>>(a);
    LOCKSTEP_CUDA_LAUNCHED();
  }
  if (a.dbias != nullptr) sum_parts(a.workspace, blocks, a.cols, a.dbias, stream);
}

}  // namespace lockstep::kernels::cuda
