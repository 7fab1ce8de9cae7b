#include "lockstep/kernels/cuda/column_sums.h"
#include "lockstep/kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {
namespace {

// 32 columns per block, 32 threads walk over the parts of one column.
template <class T>
__global__ void sum_parts_kernel(const float* parts, std::int64_t count, std::int64_t cols, T* out, bool accumulate) {
  __shared__ float tile[kWarp][kWarp + 1];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0;
  if (column < cols)
    for (std::int64_t part = threadIdx.y; part < count; part += kWarp) sum += parts[part * cols + column];
  tile[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  sum = warp_sum(tile[threadIdx.x][threadIdx.y]);
  const std::int64_t place = static_cast<std::int64_t>(blockIdx.x) * kWarp + threadIdx.y;
  if (threadIdx.x == 0 && place < cols) out[place] = accumulate ? static_cast<float>(out[place]) + sum : sum;
}

template <class T>
void launch(const float* parts, std::int64_t count, std::int64_t cols, T* out, bool accumulate, cudaStream_t stream) {
  sum_parts_kernel<<<static_cast<unsigned>(ceil_div(cols, kWarp)), dim3(kWarp, kWarp), 0, stream>>>(parts, count, cols,
                                                                                                    out, accumulate);
  LOCKSTEP_CUDA_LAUNCHED();
}

}  // namespace

void sum_parts(const float* parts, std::int64_t count, std::int64_t cols, float* out, bool accumulate,
               cudaStream_t stream) {
  launch(parts, count, cols, out, accumulate, stream);
}
void sum_parts(const float* parts, std::int64_t count, std::int64_t cols, Bf16* out, cudaStream_t stream) {
  launch(parts, count, cols, out, false, stream);
}

}  // namespace lockstep::kernels::cuda
