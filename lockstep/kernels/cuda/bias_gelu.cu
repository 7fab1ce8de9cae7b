#include <algorithm>

#include "lockstep/kernels/cuda/bias_gelu.h"
#include "lockstep/kernels/cuda/column_sums.h"
#include "lockstep/kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRowBlocks = 256;  // blocks that share the rows of one stripe of columns in backward
constexpr float kRoot = 0.7978845608028654f, kCubic = 0.044715f;  // sqrt(2/pi)

struct Gelu {
  float value, slope;
};
__device__ Gelu gelu(float x) {
  // tanh(u) = 2 / (1 + exp(-2u)) - 1, exact enough for bf16 and without overflow.
  const float u = kRoot * (x + kCubic * x * x * x);
  const float tanh = __fdividef(2.0f, 1.0f + __expf(-2.0f * u)) - 1.0f;
  const float slope = 0.5f * (1.0f + tanh) + 0.5f * x * (1.0f - tanh * tanh) * kRoot * (1.0f + 3.0f * kCubic * x * x);
  return {0.5f * x * (1.0f + tanh), slope};
}

__global__ void __launch_bounds__(kThreads) forward_kernel(BiasGeluForward a, unsigned vectors, unsigned total) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= total) return;
  const unsigned row = index / vectors, column = (index - row * vectors) * kVector;
  const std::int64_t place = row * a.cols + column;
  const Vector x = load(a.x + place), bias = load(a.bias + column);
  float f[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) f[i] = gelu(x[i] + bias[i]).value;
  store(a.y + place, pack(f));
}

// A block has a stripe of columns and every gridDim.x-th row.
__global__ void __launch_bounds__(kThreads) backward_kernel(BiasGeluBackward a) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kVector;
  if (column >= a.cols) return;
  const Vector bias = load(a.bias + column);
  float dbias[kVector] = {};
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const std::int64_t place = row * a.cols + column;
    const Vector x = load(a.x + place), dy = load(a.dy + place);
    float f[kVector], y[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const Gelu g = gelu(x[i] + bias[i]);
      y[i] = g.value;
      f[i] = dy[i] * g.slope;
      dbias[i] += f[i];
    }
    store(a.dx + place, pack(f));
    if (a.y != nullptr) store(a.y + place, pack(y));
  }
  store_floats(a.workspace + blockIdx.x * a.cols + column, dbias);
}

}  // namespace

void bias_gelu_forward(const BiasGeluForward& a, cudaStream_t stream) {
  const VectorGrid grid = vector_grid(a.rows, a.cols, kThreads, "bias_gelu_forward");
  if (grid.total == 0) return;
  forward_kernel<<<grid.blocks, kThreads, 0, stream>>>(a, grid.per_row, grid.total);
  LOCKSTEP_CUDA_LAUNCHED();
}

std::int64_t bias_gelu_workspace_floats(std::int64_t cols) { return kRowBlocks * cols; }

void bias_gelu_backward(const BiasGeluBackward& a, cudaStream_t stream) {
  require(a.cols > 0 && a.cols % kVector == 0, "bias_gelu_backward", "columns must be a multiple of 8");
  const std::int64_t blocks = std::min<std::int64_t>(a.rows, kRowBlocks);
  if (blocks > 0) {
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(ceil_div(a.cols, kThreads * kVector)));
    backward_kernel<<<grid, kThreads, 0, stream>>>(a);
    LOCKSTEP_CUDA_LAUNCHED();
  }
  sum_parts(a.workspace, blocks, a.cols, a.dbias, a.accumulate, stream);
}

}  // namespace lockstep::kernels::cuda
