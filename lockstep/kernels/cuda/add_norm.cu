#include <algorithm>

#include "lockstep/kernels/cuda/add_norm.h"
#include "lockstep/kernels/cuda/column_sums.h"
#include "lockstep/kernels/cuda/philox.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kWarps = 4, kThreads = kWarps * kWarp;
constexpr int kStripe = kWarp * kVector;  // columns that a warp covers with one vector per lane
constexpr int kBackwardBlocks = 3;        // per multiprocessor, as registers allow

// One warp per row, V vectors per lane.
template <int V>
__global__ void __launch_bounds__(kThreads) forward_kernel(AddNormForward a) {
  const int lane = threadIdx.x % kWarp;
  const std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (row >= a.rows) return;
  const MaskRow mask = mask_row(a.mask, row, a.cols);
  Vector sum[V];
  float total = 0;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int column = v * kStripe + lane * kVector;
    const std::int64_t place = row * a.cols + column;
    float f[kVector], residual[kVector];
    load_as_floats(a.x + place, f);
    load_as_floats(a.residual + place, residual);
    if (a.bias != nullptr) {
      const Vector bias = load(a.bias + column);
#pragma unroll
      for (int i = 0; i < kVector; ++i) f[i] += bias[i];
    }
    if (a.mask.threshold != 0) {
      const std::uint8_t bits = kept_bits(a.mask, mask, column);
      apply_bits(bits, a.mask.kept, f);
      if (a.kept != nullptr) a.kept[place / kVector] = bits;
    }
#pragma unroll
    for (int i = 0; i < kVector; ++i) f[i] += residual[i];
    sum[v] = pack(f);
    store(a.sum + place, sum[v]);
#pragma unroll
    for (int i = 0; i < kVector; ++i) total += sum[v][i];
  }
  const float mean = warp_sum(total) / a.cols;
  float squares = 0;
#pragma unroll
  for (int v = 0; v < V; ++v)
#pragma unroll
    for (int i = 0; i < kVector; ++i) squares += (sum[v][i] - mean) * (sum[v][i] - mean);
  const float rstd = rsqrtf(warp_sum(squares) / a.cols + a.epsilon);
  if (lane == 0) {
    a.mean[row] = mean;
    a.rstd[row] = rstd;
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int column = v * kStripe + lane * kVector;
    const Vector weight = load(a.norm_weight + column), bias = load(a.norm_bias + column);
    float f[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) f[i] = (sum[v][i] - mean) * rstd * weight[i] + bias[i];
    store(a.y + row * a.cols + column, pack(f));
  }
}

enum class Masking { kNone, kDrawn, kRead };

// Sums over the rows that a lane has seen, of its columns.
template <int V>
struct ColumnParts {
  float dweight[V][kVector] = {}, dbias[V][kVector] = {}, dx[V][kVector] = {};
};

template <int V, Masking kMasking>
__device__ void backward_row(const AddNormBackward& a, std::int64_t row, int lane, ColumnParts<V>& parts) {
  const float mean = a.mean[row], rstd = a.rstd[row];
  Vector sum[V], dy[V];
  float total = 0, dot = 0;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const std::int64_t place = row * a.cols + v * kStripe + lane * kVector;
    sum[v] = load_once(a.sum + place);
    dy[v] = load_once(a.dy + place);
  }
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const Vector weight = load(a.norm_weight + v * kStripe + lane * kVector);
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const float normed = (sum[v][i] - mean) * rstd, scaled = weight[i] * dy[v][i];
      total += scaled;
      dot += scaled * normed;
      parts.dweight[v][i] += dy[v][i] * normed;
      parts.dbias[v][i] += dy[v][i];
    }
  }
  const float mean_total = warp_sum(total) / a.cols, mean_dot = warp_sum(dot) / a.cols;
#pragma unroll
  for (int v = 0; v < V; ++v) {
    const int column = v * kStripe + lane * kVector;
    const std::int64_t place = row * a.cols + column;
    const Vector weight = load(a.norm_weight + column);
    float f[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i)
      f[i] = rstd * (weight[i] * dy[v][i] - mean_total - (sum[v][i] - mean) * rstd * mean_dot);
    store(a.dresidual + place, pack(f));
    if (kMasking == Masking::kRead) apply_bits(a.kept[place / kVector], a.mask.kept, f);
    if (kMasking == Masking::kDrawn) apply_mask(a.mask, mask_row(a.mask, row, a.cols), column, f);
    if (kMasking != Masking::kNone) store(a.dx + place, pack(f));
#pragma unroll
    for (int i = 0; i < kVector; ++i) parts.dx[v][i] += f[i];
  }
}

// The warps of a block add their sums in order; the block leaves one row of [blocks, 3, cols].
template <int V>
__device__ void leave_parts(const AddNormBackward& a, float (&of_lane)[V][kVector], int array) {
  __shared__ float sums[V * kStripe];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  for (int turn = 0; turn < kWarps; ++turn) {
    if (warp == turn) {
#pragma unroll
      for (int v = 0; v < V; ++v)
#pragma unroll
        for (int i = 0; i < kVector; ++i) {
          float& sum = sums[v * kStripe + i * kWarp + lane];  // [v][i][lane]: no bank conflicts
          sum = turn == 0 ? of_lane[v][i] : sum + of_lane[v][i];
        }
    }
    __syncthreads();
  }
  float* const out = a.workspace + (static_cast<std::int64_t>(blockIdx.x) * 3 + array) * a.cols;
  for (int c = threadIdx.x; c < V * kStripe; c += kThreads) {
    const int v = c / kStripe, inside = c % kStripe;
    out[c] = sums[v * kStripe + inside % kVector * kWarp + inside / kVector];
  }
  __syncthreads();
}

template <int V, Masking kMasking>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks) backward_kernel(AddNormBackward a) {
  const int lane = threadIdx.x % kWarp;
  ColumnParts<V> parts;
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * kWarps;
  for (std::int64_t row = static_cast<std::int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; row < a.rows;
       row += step)
    backward_row<V, kMasking>(a, row, lane, parts);
  leave_parts<V>(a, parts.dweight, 0);
  leave_parts<V>(a, parts.dbias, 1);
  leave_parts<V>(a, parts.dx, 2);
}

int backward_blocks() { return multiprocessors() * kBackwardBlocks; }

// Calls f.template operator()<V>() for the vectors per lane.
template <class F>
void with_vectors(std::int64_t cols, F f) {
  switch (cols / kStripe) {
    case 1:
      return f.template operator()<1>();
    case 2:
      return f.template operator()<2>();
    case 3:
      return f.template operator()<3>();
    default:
      return f.template operator()<4>();
  }
}

}  // namespace

void add_norm_forward(const AddNormForward& a, cudaStream_t stream) {
  require(add_norm_takes(a.cols), "add_norm_forward", "columns must be a multiple of 256, at most 1024");
  require(a.mask.rows_per_sample > 0, "add_norm_forward", "a sample has at least one row");
  if (a.rows == 0) return;
  with_vectors(a.cols, [&]<int V>() {
    forward_kernel<V><<<static_cast<unsigned>(ceil_div(a.rows, kWarps)), kThreads, 0, stream>>>(a);
  });
  LOCKSTEP_CUDA_LAUNCHED();
}

std::int64_t add_norm_workspace_floats(std::int64_t cols) { return 3 * backward_blocks() * cols; }

void add_norm_backward(const AddNormBackward& a, cudaStream_t stream) {
  require(add_norm_takes(a.cols), "add_norm_backward", "columns must be a multiple of 256, at most 1024");
  require(a.mask.rows_per_sample > 0, "add_norm_backward", "a sample has at least one row");
  require(a.dx != nullptr || a.mask.threshold == 0, "add_norm_backward", "a mask needs dx");
  const std::int64_t blocks = std::min<std::int64_t>(ceil_div(a.rows, kWarps), backward_blocks());
  if (blocks > 0) {
    with_vectors(a.cols, [&]<int V>() {
      const auto kernel = a.dx == nullptr     ? backward_kernel<V, Masking::kNone>
                          : a.kept == nullptr ? backward_kernel<V, Masking::kDrawn>
                                              : backward_kernel<V, Masking::kRead>;
      kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(a);
    });
    LOCKSTEP_CUDA_LAUNCHED();
  }
  sum_parts(a.workspace, blocks, 3 * a.cols, a.sums, stream);
}

}  // namespace lockstep::kernels::cuda
