#include <cub/device/device_radix_sort.cuh>

#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/embedding.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads)
    forward_kernel(const std::int32_t* tokens, const Bf16* table, Bf16* out, unsigned vectors, unsigned total) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= total) return;
  const unsigned t = index / vectors, column = (index - t * vectors) * kVector;
  const std::int64_t cols = static_cast<std::int64_t>(vectors) * kVector;
  store(out + t * cols + column, load(table + tokens[t] * cols + column));
}

__global__ void iota_kernel(std::int32_t* out, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) out[i] = static_cast<std::int32_t>(i);
}

constexpr int kColumnThreads = 64, kLanes = 4;  // a block: 64 vectors wide, 4 positions of a run at a time

// Sorted by token (a stable sort), a token's positions are one run; the block at its start sums it.
template <class Gradient>
__global__ void __launch_bounds__(kColumnThreads* kLanes)
    run_kernel(EmbeddingBackward<Gradient> a, const std::int32_t* sorted, const std::int32_t* positions) {
  __shared__ float partial[kLanes][kColumnThreads * kVector];
  const std::int64_t start = blockIdx.x;
  const std::int32_t token = sorted[start];
  if (start > 0 && sorted[start - 1] == token) return;
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * kColumnThreads + threadIdx.x) * kVector;
  const bool active = column < a.cols;
  float sum[kVector] = {};
  for (std::int64_t i = start + threadIdx.y; i < a.count && sorted[i] == token; i += kLanes) {
    if (!active) continue;
    const Vector v = load(a.dout + positions[i] * a.cols + column);
#pragma unroll
    for (int k = 0; k < kVector; ++k) sum[k] += v[k];
  }
#pragma unroll
  for (int k = 0; k < kVector; ++k) partial[threadIdx.y][threadIdx.x * kVector + k] = sum[k];
  __syncthreads();
  if (threadIdx.y != 0 || !active) return;
  Gradient* const out = a.gradient + token * a.cols + column;
  if (a.accumulate)
    load_as_floats(out, sum);
  else
    for (float& s : sum) s = 0;
#pragma unroll
  for (int lane = 0; lane < kLanes; ++lane)
#pragma unroll
    for (int k = 0; k < kVector; ++k) sum[k] += partial[lane][threadIdx.x * kVector + k];
  store_from_floats(out, sum);
}

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }
std::size_t sort_bytes(std::int64_t count) {
  std::size_t bytes = 0;
  const std::int32_t* keys = nullptr;
  std::int32_t* out = nullptr;
  LOCKSTEP_CUDA(cub::DeviceRadixSort::SortPairs(nullptr, bytes, keys, out, keys, out, static_cast<int>(count)));
  return bytes;
}

}  // namespace

void embedding_forward(const std::int32_t* tokens, const Bf16* table, Bf16* out, std::int64_t count, std::int64_t cols,
                       cudaStream_t stream) {
  const VectorGrid grid = vector_grid(count, cols, kThreads, "embedding_forward");
  if (grid.total == 0) return;
  forward_kernel<<<grid.blocks, kThreads, 0, stream>>>(tokens, table, out, grid.per_row, grid.total);
  LOCKSTEP_CUDA_LAUNCHED();
}

std::size_t embedding_workspace_bytes(std::int64_t count) {
  return 3 * aligned(count * sizeof(std::int32_t)) + aligned(sort_bytes(count));
}

template <class Gradient>
void embedding_backward(const EmbeddingBackward<Gradient>& a, cudaStream_t stream) {
  require(a.cols > 0 && a.cols % kVector == 0, "embedding_backward", "columns must be a multiple of 8");
  require(a.workspace_bytes >= embedding_workspace_bytes(a.count), "embedding_backward", "the workspace is too small");
  if (!a.accumulate) LOCKSTEP_CUDA(cudaMemsetAsync(a.gradient, 0, a.vocab * a.cols * sizeof(Gradient), stream));
  if (a.count == 0) return;
  const std::size_t part = aligned(a.count * sizeof(std::int32_t));
  auto* const base = static_cast<char*>(a.workspace);
  auto* const order = reinterpret_cast<std::int32_t*>(base);
  auto* const sorted = reinterpret_cast<std::int32_t*>(base + part);
  auto* const positions = reinterpret_cast<std::int32_t*>(base + 2 * part);
  iota_kernel<<<static_cast<unsigned>(ceil_div(a.count, kThreads)), kThreads, 0, stream>>>(order, a.count);
  LOCKSTEP_CUDA_LAUNCHED();
  int bits = 1;
  while ((std::int64_t{1} << bits) < a.vocab) ++bits;
  std::size_t bytes = a.workspace_bytes - 3 * part;
  LOCKSTEP_CUDA(cub::DeviceRadixSort::SortPairs(base + 3 * part, bytes, a.tokens, sorted, order, positions,
                                                static_cast<int>(a.count), 0, bits, stream));
  const dim3 grid(static_cast<unsigned>(a.count), static_cast<unsigned>(ceil_div(a.cols, kColumnThreads * kVector)));
  run_kernel<Gradient><<<grid, dim3(kColumnThreads, kLanes), 0, stream>>>(a, sorted, positions);
  LOCKSTEP_CUDA_LAUNCHED();
}
template void embedding_backward(const EmbeddingBackward<float>&, cudaStream_t);
template void embedding_backward(const EmbeddingBackward<Bf16>&, cudaStream_t);

}  // namespace lockstep::kernels::cuda
