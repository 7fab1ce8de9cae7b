#include <algorithm>

#include "lockstep/kernels/cuda/column_sums.h"
#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/layer_norm.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kForwardThreads = 1024, kBackwardThreads = 1024;  // per multiprocessor, as their registers allow

// One vector per thread and row, a block walks over rows. Four sets of slots: two sums per row, two rows in turn.
__global__ void __launch_bounds__(1024) forward_kernel(LayerNormForward a) {
  __shared__ float slots[4][kWarp];
  const int c = threadIdx.x * kVector;
  const bool active = c < a.cols;
  const Vector weight = active ? load(a.weight + c) : Vector{}, bias = active ? load(a.bias + c) : Vector{};
  int parity = 0;
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, parity ^= 2) {
    const std::int64_t place = row * a.cols + c;
    Vector v = active ? load(a.x + place) : Vector{};
    float f[kVector];
    if (a.delta != nullptr && active) {
      const Vector delta = load(a.delta + place);
#pragma unroll
      for (int i = 0; i < kVector; ++i) f[i] = v[i] + delta[i];
      v = pack(f);
      store(a.sum + place, v);
    }
    float sum = 0, squares = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) sum += v[i];
    const float mean = block_sum(sum, slots[parity]) / a.cols;
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares += active ? (v[i] - mean) * (v[i] - mean) : 0.0f;
    const float rstd = rsqrtf(block_sum(squares, slots[parity + 1]) / a.cols + a.epsilon);
    if (threadIdx.x == 0) {
      a.mean[row] = mean;
      a.rstd[row] = rstd;
    }
    if (!active) continue;
#pragma unroll
    for (int i = 0; i < kVector; ++i) f[i] = (v[i] - mean) * rstd * weight[i] + bias[i];
    store(a.y + place, pack(f));
  }
}

__global__ void __launch_bounds__(1024) backward_kernel(LayerNormBackward a) {
  __shared__ float slots[4][kWarp];
  const int c = threadIdx.x * kVector;
  const bool active = c < a.cols;
  const Vector weight = active ? load(a.weight + c) : Vector{};
  float dweight[kVector] = {}, dbias[kVector] = {};
  int parity = 0;
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, parity ^= 2) {
    const std::int64_t place = row * a.cols + c;
    const Vector x = active ? load(a.x + place) : Vector{}, dy = active ? load(a.dy + place) : Vector{};
    const Vector residual = active && a.dresidual != nullptr ? load(a.dresidual + place) : Vector{};
    const float mean = a.mean[row], rstd = a.rstd[row];
    float sum = 0, dot = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float normed = (x[i] - mean) * rstd;
      sum += weight[i] * dy[i];
      dot += weight[i] * dy[i] * normed;
      dweight[i] += dy[i] * normed;
      dbias[i] += dy[i];
    }
    const float mean_sum = block_sum(sum, slots[parity]) / a.cols;
    const float mean_dot = block_sum(dot, slots[parity + 1]) / a.cols;
    if (!active) continue;
    float f[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      f[i] = residual[i] + rstd * (weight[i] * dy[i] - mean_sum - (x[i] - mean) * rstd * mean_dot);
    store(a.dx + place, pack(f));
  }
  if (!active) return;
  store_floats(a.workspace + blockIdx.x * a.cols + c, dweight);
  store_floats(a.workspace + (gridDim.x + blockIdx.x) * a.cols + c, dbias);
}

int threads_for(std::int64_t cols) { return static_cast<int>(ceil_div(cols, kVector * kWarp) * kWarp); }
int blocks_for(std::int64_t cols, int threads_per_multiprocessor) {
  return multiprocessors() * std::max(1, threads_per_multiprocessor / threads_for(cols));
}
void check_cols(std::int64_t cols) {
  require(cols > 0 && cols % kVector == 0 && cols <= kLayerNormMaxCols, "layer_norm",
          "columns must be a multiple of 8 and at most 8192");
}

}  // namespace

void layer_norm_forward(const LayerNormForward& a, cudaStream_t stream) {
  check_cols(a.cols);
  require(a.delta == nullptr || a.sum != nullptr, "layer_norm_forward", "delta needs sum");
  if (a.rows == 0) return;
  const std::int64_t blocks = std::min<std::int64_t>(a.rows, blocks_for(a.cols, kForwardThreads));
  forward_kernel<<<static_cast<unsigned>(blocks), threads_for(a.cols), 0, stream>>>(a);
  LOCKSTEP_CUDA_LAUNCHED();
}

std::int64_t layer_norm_workspace_floats(std::int64_t cols) { return 2 * blocks_for(cols, kBackwardThreads) * cols; }

void layer_norm_backward(const LayerNormBackward& a, cudaStream_t stream) {
  check_cols(a.cols);
  const std::int64_t blocks = std::min<std::int64_t>(a.rows, blocks_for(a.cols, kBackwardThreads));
  if (blocks > 0) {
    backward_kernel<<<static_cast<unsigned>(blocks), threads_for(a.cols), 0, stream>>>(a);
    LOCKSTEP_CUDA_LAUNCHED();
  }
  sum_parts(a.workspace, blocks, a.cols, a.dweight, a.accumulate, stream);
  sum_parts(a.workspace + blocks * a.cols, blocks, a.cols, a.dbias, a.accumulate, stream);
}

}  // namespace lockstep::kernels::cuda
