#include <algorithm>

#include "lockstep/kernels/cuda/column_sums.h"
#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/gelu_erf.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;
// Blocks per multiprocessor in backward, as registers allow: all run at once, none comes after.
constexpr int kBackwardBlocks = 4;
constexpr float kRootHalf = 0.7071067811865476f, kRootTwoPi = 0.3989422804014327f;  // sqrt(1/2), 1 / sqrt(2 pi)

__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The normal distribution's value at x, and exp(-x^2 / 2). The error function by formula 7.1.26 of Abramowitz and
// Stegun, 1.5e-7 off at most: far below bf16, and it shares its exponential with the density. erff() alone would make
// the passes wait for arithmetic instead of memory.
struct Normal {
  float cdf, bell;
};
__device__ inline Normal normal(float x) {
  const float bell = exp2_fast(-0.72134752044f * x * x);
  const float t = __fdividef(1.0f, fmaf(0.3275911f * kRootHalf, fabsf(x), 1.0f));
  const float poly =
      t * fmaf(t, fmaf(t, fmaf(t, fmaf(t, 1.061405429f, -1.453152027f), 1.421413741f), -0.284496736f), 0.254829592f);
  const float tail = 0.5f * poly * bell;
  return {x >= 0 ? 1.0f - tail : tail, bell};
}

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
    f[i] = x * normal(x).cdf;
  }
  store(a.y + place, pack(f));
}

// A block has a stripe of columns and every gridDim.x-th row; the next row is on its way while this one is computed.
__global__ void __launch_bounds__(kThreads, kBackwardBlocks) backward_kernel(GeluErfBackward a) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kVector;
  if (column >= a.cols) return;
  float dbias[kVector] = {};
  const Vector bias = a.bias != nullptr ? load(a.bias + column) : Vector{};
  Vector next_x = load_once(a.x + blockIdx.x * a.cols + column),
         next_dy = load_once(a.dy + blockIdx.x * a.cols + column);
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const Vector in = next_x, dy = next_dy;
    if (row + gridDim.x < a.rows) {
      next_x = load_once(a.x + (row + gridDim.x) * a.cols + column);
      next_dy = load_once(a.dy + (row + gridDim.x) * a.cols + column);
    }
    float f[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float x = in[i] + bias[i];
      const Normal n = normal(x);
      f[i] = dy[i] * fmaf(x * kRootTwoPi, n.bell, n.cdf);
      dbias[i] += f[i];
    }
    store(a.dx + row * a.cols + column, pack(f));
  }
  if (a.dbias != nullptr) store_floats(a.workspace + blockIdx.x * a.cols + column, dbias);
}

std::int64_t stripes_of(std::int64_t cols) { return ceil_div(cols, kThreads * kVector); }
// Blocks that share the rows of one stripe of columns in backward.
std::int64_t row_blocks(std::int64_t cols) {
  return std::max<std::int64_t>(1, multiprocessors() * kBackwardBlocks / stripes_of(cols));
}

}  // namespace

void gelu_erf_forward(const GeluErfForward& a, cudaStream_t stream) {
  const VectorGrid grid = vector_grid(a.rows, a.cols, kThreads, "gelu_erf_forward");
  if (grid.total == 0) return;
  forward_kernel<<<grid.blocks, kThreads, 0, stream>>>(a, grid.per_row, grid.total);
  LOCKSTEP_CUDA_LAUNCHED();
}

std::int64_t gelu_erf_workspace_floats(std::int64_t cols) { return row_blocks(cols) * cols; }

void gelu_erf_backward(const GeluErfBackward& a, cudaStream_t stream) {
  require(a.cols > 0 && a.cols % kVector == 0, "gelu_erf_backward", "columns must be a multiple of 8");
  const std::int64_t blocks = std::min<std::int64_t>(a.rows, row_blocks(a.cols));
  if (blocks > 0) {
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(stripes_of(a.cols)));
    backward_kernel<<<grid, kThreads, 0, stream>>>(a);
    LOCKSTEP_CUDA_LAUNCHED();
  }
  if (a.dbias != nullptr) sum_parts(a.workspace, blocks, a.cols, a.dbias, stream);
}

}  // namespace lockstep::kernels::cuda
