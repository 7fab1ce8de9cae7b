#include <algorithm>

#include "lockstep/kernels/cuda/column_sums.h"
#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/join_columns.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 128;
constexpr int kRowBlocks = 512;

// A block has a stripe of columns of the result and every gridDim.x-th row.
__global__ void __launch_bounds__(kThreads) join_kernel(JoinColumns a, std::int64_t cols) {
  const std::int64_t column = (static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kVector;
  if (column >= cols) return;
  const int part = static_cast<int>(column / a.part_cols);
  const Bf16* const base = part == 0 ? a.parts[0] : part == 1 ? a.parts[1] : a.parts[2];
  const Bf16* const from = base + (column - part * a.part_cols);
  float sums[kVector] = {};
#pragma unroll 4
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x) {
    const Vector v = load_once(from + row * a.part_cols);
    if (a.out != nullptr) store(a.out + row * cols + column, v);
#pragma unroll
    for (int i = 0; i < kVector; ++i) sums[i] += v[i];
  }
  if (a.sums != nullptr) store_floats(a.workspace + blockIdx.x * cols + column, sums);
}

}  // namespace

std::int64_t join_workspace_floats(std::int64_t cols) { return kRowBlocks * cols; }

void join_columns(const JoinColumns& a, cudaStream_t stream) {
  require(a.part_cols > 0 && a.part_cols % kVector == 0, "join_columns", "columns must be a multiple of 8");
  require(a.count >= 1 && a.count <= kJoinMost, "join_columns", "one to three parts");
  const std::int64_t cols = a.count * a.part_cols, blocks = std::min<std::int64_t>(a.rows, kRowBlocks);
  if (blocks > 0) {
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(ceil_div(cols, kThreads * kVector)));
    join_kernel<<<grid, kThreads, 0, stream>>>(a, cols);
    LOCKSTEP_CUDA_LAUNCHED();
  }
  if (a.sums != nullptr) sum_parts(a.workspace, blocks, cols, a.sums, stream);
}

}  // namespace lockstep::kernels::cuda
