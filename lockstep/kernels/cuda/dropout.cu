#include "lockstep/kernels/cuda/philox.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads) dropout_kernel(Dropout<T> a, unsigned vectors, unsigned total) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  if (index >= total) return;
  const unsigned row = index / vectors, column = (index - row * vectors) * kVector;
  const std::int64_t place = row * a.cols + column;
  float f[kVector];
  load_as_floats(a.x + place, f);
  if (a.bias != nullptr) {
    float bias[kVector];
    load_as_floats(a.bias + column, bias);
#pragma unroll
    for (int i = 0; i < kVector; ++i) f[i] += bias[i];
  }
  apply_mask(a.mask, mask_row(a.mask, row, a.cols), column, f);
  if (a.residual != nullptr) {
    float residual[kVector];
    load_as_floats(a.residual + place, residual);
#pragma unroll
    for (int i = 0; i < kVector; ++i) f[i] += residual[i];
  }
  store_from_floats(a.out + place, f);
}

}  // namespace

template <class T>
void dropout(const Dropout<T>& a, cudaStream_t stream) {
  require(a.mask.rows_per_sample > 0, "dropout", "a sample has at least one row");
  const VectorGrid grid = vector_grid(a.rows, a.cols, kThreads, "dropout");
  if (grid.total == 0) return;
  dropout_kernel<<<grid.blocks, kThreads, 0, stream>>>(a, grid.per_row, grid.total);
  LOCKSTEP_CUDA_LAUNCHED();
}
template void dropout(const Dropout<Bf16>&, cudaStream_t);
template void dropout(const Dropout<float>&, cudaStream_t);

}  // namespace lockstep::kernels::cuda
