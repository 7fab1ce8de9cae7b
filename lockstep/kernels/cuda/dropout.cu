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
  require(a.cols > 0 && a.cols % kVector == 0, "dropout", "columns must be a multiple of 8");
  require(a.mask.rows_per_sample > 0, "dropout", "a sample has at least one row");
  const std::int64_t vectors = a.cols / kVector, total = a.rows * vectors;
  require(total < kIndexLimit, "dropout", "too many elements for one launch");
  if (total == 0) return;
  dropout_kernel<<<static_cast<unsigned>(ceil_div(total, kThreads)), kThreads, 0, stream>>>(
      a, static_cast<unsigned>(vectors), static_cast<unsigned>(total));
  LOCKSTEP_CUDA_LAUNCHED();
}
template void dropout(const Dropout<Bf16>&, cudaStream_t);
template void dropout(const Dropout<float>&, cudaStream_t);

}  // namespace lockstep::kernels::cuda
