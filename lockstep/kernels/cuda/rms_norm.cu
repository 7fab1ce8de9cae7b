#include <algorithm>

#include "lockstep/kernels/cuda/column_sums.h"
#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/rms_norm.h"

namespace lockstep::kernels::cuda {
namespace {

// One vector per thread and row; a block walks over rows and asks for the next one before it uses this one, so that
// memory is busy while the block waits in its reduction.
template <Extra kExtra, bool kDelta>
__global__ void __launch_bounds__(1024) forward_kernel(RmsNormForward a) {
  __shared__ float slots[2][kWarp];
  const int c = threadIdx.x * kVector;
  const bool active = c < a.cols;
  const Vector weight = active ? load(a.weight + c) : Vector{};
  const float scale = kExtra == Extra::kNone ? 1.0f : *a.y8.scale;
  float largest = 0;
  Vector next = active && blockIdx.x < a.rows ? load(a.x + blockIdx.x * a.cols + c) : Vector{};
  Vector next_delta = kDelta && active && blockIdx.x < a.rows ? load(a.delta + blockIdx.x * a.cols + c) : Vector{};
  int parity = 0;
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, parity ^= 1) {
    Vector v = next;
    const Vector delta = next_delta;
    const std::int64_t following = row + gridDim.x;
    if (active && following < a.rows) {
      next = load(a.x + following * a.cols + c);
      if (kDelta) next_delta = load(a.delta + following * a.cols + c);
    }
    if (kDelta) {
      float f[kVector];
#pragma unroll
      for (int i = 0; i < kVector; ++i) f[i] = v[i] + delta[i];
      v = pack(f);
      if (active) store(a.sum + row * a.cols + c, v);
    }
    float squares = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares += v[i] * v[i];
    const float rstd = rsqrtf(block_sum(squares, slots[parity]) / a.cols + a.epsilon);
    if (threadIdx.x == 0) a.rstd[row] = rstd;
    if (!active) continue;
    float f[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) f[i] = v[i] * rstd * weight[i];
    if (a.y != nullptr) store(a.y + row * a.cols + c, pack(f));
    if (kExtra != Extra::kNone)
      largest = fmaxf(largest, store_fp8<kFormatOf<kExtra>>(a.y8.data + row * a.cols + c, f, scale));
  }
  if (kExtra != Extra::kNone) raise_amax_of_warp(a.y8.amax, largest);
}

struct BackwardRow {
  Vector x, dy, residual;
  float rstd;
};

template <bool kResidual>
__device__ BackwardRow load_row(const RmsNormBackward& a, std::int64_t row, int c, bool active) {
  BackwardRow r{};
  if (row >= a.rows) return r;
  r.rstd = a.rstd[row];
  if (!active) return r;
  r.x = load(a.x + row * a.cols + c);
  r.dy = load(a.dy + row * a.cols + c);
  if (kResidual) r.residual = load(a.dresidual + row * a.cols + c);
  return r;
}

template <Extra kExtra, bool kResidual>
__global__ void __launch_bounds__(1024) backward_kernel(RmsNormBackward a) {
  __shared__ float slots[2][kWarp];
  const int c = threadIdx.x * kVector;
  const bool active = c < a.cols;
  const Vector weight = active ? load(a.weight + c) : Vector{};
  const float scale = kExtra == Extra::kNone ? 1.0f : *a.dx8.scale;
  float largest = 0, dweight[kVector] = {};
  BackwardRow next = load_row<kResidual>(a, blockIdx.x, c, active);
  int parity = 0;
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, parity ^= 1) {
    const BackwardRow r = next;
    next = load_row<kResidual>(a, row + gridDim.x, c, active);
    float dot = 0;
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float normed = r.x[i] * r.rstd;
      dot += weight[i] * r.dy[i] * normed;
      dweight[i] += r.dy[i] * normed;
    }
    const float mean = block_sum(dot, slots[parity]) / a.cols;
    if (!active) continue;
    float f[kVector];
    if (a.y != nullptr) {
#pragma unroll
      for (int i = 0; i < kVector; ++i) f[i] = r.x[i] * r.rstd * weight[i];
      store(a.y + row * a.cols + c, pack(f));
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      f[i] = r.rstd * (weight[i] * r.dy[i] - r.x[i] * r.rstd * mean);
      if (kResidual) f[i] += r.residual[i];
    }
    store(a.dx + row * a.cols + c, pack(f));
    if (kExtra != Extra::kNone)
      largest = fmaxf(largest, store_fp8<kFormatOf<kExtra>>(a.dx8.data + row * a.cols + c, f, scale));
  }
  if (kExtra != Extra::kNone) raise_amax_of_warp(a.dx8.amax, largest);
  if (active) store_floats(a.workspace + blockIdx.x * a.cols + c, dweight);
}

int threads_for(std::int64_t cols) { return static_cast<int>(ceil_div(cols, kVector * kWarp) * kWarp); }

// Blocks that are resident together, for a grid that walks over rows.
int blocks_for(std::int64_t cols, int threads_per_multiprocessor) {
  const int per_multiprocessor = threads_per_multiprocessor / threads_for(cols);
  return multiprocessors() * (per_multiprocessor > 0 ? per_multiprocessor : 1);
}
constexpr int kForwardThreads = 1536;  // per multiprocessor, as their registers allow
constexpr int kBackwardThreads = plan::fused::kNormBackwardThreads;
static_assert(kVector == plan::fused::kNormVector && kWarp == plan::fused::kWarpThreads);

void check_shape(std::int64_t rows, std::int64_t cols) {
  require(rows >= 0 && cols > 0 && cols % kVector == 0 && cols <= kRmsNormMaxCols, "rms_norm",
          "columns must be a multiple of 8 and at most 8192");
}

}  // namespace

void rms_norm_forward(const RmsNormForward& a, cudaStream_t stream) {
  check_shape(a.rows, a.cols);
  require(a.delta == nullptr || a.sum != nullptr, "rms_norm_forward", "delta needs sum");
  if (a.rows == 0) return;
  const int threads = threads_for(a.cols);
  const int blocks = static_cast<int>(std::min<std::int64_t>(a.rows, blocks_for(a.cols, kForwardThreads)));
  with_extra(a.y8, [&]<Extra kExtra>() {
    if (a.delta != nullptr)
      forward_kernel<kExtra, true><<<blocks, threads, 0, stream>>>(a);
    else
      forward_kernel<kExtra, false><<<blocks, threads, 0, stream>>>(a);
  });
  LOCKSTEP_CUDA_LAUNCHED();
}

std::int64_t rms_norm_workspace_floats(std::int64_t cols) { return blocks_for(cols, kBackwardThreads) * cols; }

void rms_norm_backward(const RmsNormBackward& a, cudaStream_t stream) {
  check_shape(a.rows, a.cols);
  const int threads = threads_for(a.cols);
  const int blocks = static_cast<int>(std::min<std::int64_t>(a.rows, blocks_for(a.cols, kBackwardThreads)));
  if (blocks > 0) {
    with_extra(a.dx8, [&]<Extra kExtra>() {
      if (a.dresidual != nullptr)
        backward_kernel<kExtra, true><<<blocks, threads, 0, stream>>>(a);
      else
        backward_kernel<kExtra, false><<<blocks, threads, 0, stream>>>(a);
    });
    LOCKSTEP_CUDA_LAUNCHED();
  }
  sum_parts(a.workspace, blocks, a.cols, a.dweight, a.accumulate, stream);
}

}  // namespace lockstep::kernels::cuda
