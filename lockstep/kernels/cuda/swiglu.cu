#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/swiglu.h"
#include "lockstep/kernels/cuda/swiglu_math.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// Place of vector `index` of the rows: element offset in [rows, cols] and in [rows, 2, cols].
struct Place {
  std::int64_t single, gate;
};
__device__ Place place_of(unsigned index, unsigned vectors, std::int64_t cols) {
  const unsigned row = index / vectors;
  const unsigned column = (index - row * vectors) * kVector;
  return {row * cols + column, row * 2 * cols + column};
}

template <Extra kExtra>
__global__ void __launch_bounds__(kThreads) forward_kernel(SwigluForward a, unsigned vectors, unsigned total) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  float largest = 0;
  if (index < total) {
    const Place place = place_of(index, vectors, a.cols);
    const Vector gate = load_once(a.gate_up + place.gate), up = load_once(a.gate_up + place.gate + a.cols);
    float f[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) f[i] = swiglu(gate[i], up[i]);
    if (a.h != nullptr) store(a.h + place.single, pack(f));
    if (kExtra != Extra::kNone) largest = store_fp8<kFormatOf<kExtra>>(a.h8.data + place.single, f, *a.h8.scale);
  }
  if (kExtra != Extra::kNone) raise_amax_of_warp(a.h8.amax, largest);
}

template <Extra kExtra>
__global__ void __launch_bounds__(kThreads) backward_kernel(SwigluBackward a, unsigned vectors, unsigned total) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  float largest = 0;
  if (index < total) {
    const Place place = place_of(index, vectors, a.cols);
    const Vector gate = load_once(a.gate_up + place.gate), up = load_once(a.gate_up + place.gate + a.cols);
    const Vector dh = load_once(a.dh + place.single);
    float dgate[kVector], dup[kVector], h[kVector];
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
      const SwigluGradient g = swiglu_gradient(gate[i], up[i], dh[i]);
      dgate[i] = g.dgate, dup[i] = g.dup, h[i] = g.h;
    }
    store(a.dgate_up + place.gate, pack(dgate));
    store(a.dgate_up + place.gate + a.cols, pack(dup));
    if (a.h != nullptr) store(a.h + place.single, pack(h));
    if (kExtra != Extra::kNone) {
      const float scale = *a.dgate_up8.scale;
      largest = store_fp8<kFormatOf<kExtra>>(a.dgate_up8.data + place.gate, dgate, scale);
      largest = fmaxf(largest, store_fp8<kFormatOf<kExtra>>(a.dgate_up8.data + place.gate + a.cols, dup, scale));
    }
  }
  if (kExtra != Extra::kNone) raise_amax_of_warp(a.dgate_up8.amax, largest);
}

}  // namespace

void swiglu_forward(const SwigluForward& a, cudaStream_t stream) {
  const VectorGrid grid = vector_grid(a.rows, a.cols, kThreads, "swiglu_forward");
  if (grid.total == 0) return;
  with_extra(a.h8, [&]<Extra kExtra>() {
    forward_kernel<kExtra><<<grid.blocks, kThreads, 0, stream>>>(a, grid.per_row, grid.total);
  });
  LOCKSTEP_CUDA_LAUNCHED();
}

void swiglu_backward(const SwigluBackward& a, cudaStream_t stream) {
  const VectorGrid grid = vector_grid(a.rows, a.cols, kThreads, "swiglu_backward");
  if (grid.total == 0) return;
  with_extra(a.dgate_up8, [&]<Extra kExtra>() {
    backward_kernel<kExtra><<<grid.blocks, kThreads, 0, stream>>>(a, grid.per_row, grid.total);
  });
  LOCKSTEP_CUDA_LAUNCHED();
}

}  // namespace lockstep::kernels::cuda
