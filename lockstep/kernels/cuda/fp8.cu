#include <algorithm>
#include <cmath>

#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/fp8.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr float kLargestE4m3 = fp8_largest(Fp8Format::kE4m3), kLargestE5m2 = fp8_largest(Fp8Format::kE5m2);

__global__ void __launch_bounds__(kThreads) amax_kernel(const Bf16* x, std::int64_t vectors, float* amax) {
  float largest = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors; i += stride) {
    const Vector v = load(x + i * kVector);
#pragma unroll
    for (int k = 0; k < kVector; ++k) largest = fmaxf(largest, fabsf(v[k]));
  }
  raise_amax_of_warp(amax, largest);
}

template <Fp8Format kFormat>
__global__ void __launch_bounds__(kThreads) quantize_kernel(const Bf16* x, Fp8Output out, std::int64_t pairs) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  float largest = 0;
  if (i < pairs) {
    const Vector v = load_once(x + i * kVector);
    float f[kVector];
    unpack(v, f);
    largest = store_fp8<kFormat>(out.data + i * kVector, f, *out.scale);
  }
  raise_amax_of_warp(out.amax, largest);
}

constexpr int kTile = 64;

// A tile of 64 x 64 through shared memory: reads of 16 bytes, writes of 8 in either order.
template <Fp8Format kFormat>
__global__ void __launch_bounds__(kThreads)
    transpose_kernel(const Bf16* x, Fp8Output out, std::uint8_t* transposed, std::int64_t rows, std::int64_t cols) {
  __shared__ std::uint8_t tile[kTile][kTile + 4];
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.y) * kTile,
                     col0 = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const float scale = *out.scale;
  float largest = 0;
#pragma unroll
  for (int pass = 0; pass < 2; ++pass) {
    const int r = pass * 32 + static_cast<int>(threadIdx.x) / 8, c = static_cast<int>(threadIdx.x) % 8 * kVector;
    float f[kVector];
    unpack(load_once(x + (row0 + r) * cols + col0 + c), f);
#pragma unroll
    for (float value : f) largest = fmaxf(largest, fabsf(value));
    const std::uint32_t low = to_fp8x4<kFormat>(f[0] * scale, f[1] * scale, f[2] * scale, f[3] * scale);
    const std::uint32_t high = to_fp8x4<kFormat>(f[4] * scale, f[5] * scale, f[6] * scale, f[7] * scale);
    if (out.data != nullptr) *reinterpret_cast<uint2*>(out.data + (row0 + r) * cols + col0 + c) = make_uint2(low, high);
    *reinterpret_cast<std::uint32_t*>(&tile[r][c]) = low;
    *reinterpret_cast<std::uint32_t*>(&tile[r][c + 4]) = high;
  }
  __syncthreads();
#pragma unroll
  for (int pass = 0; pass < 2; ++pass) {
    const int c = pass * 32 + static_cast<int>(threadIdx.x) / 8, r = static_cast<int>(threadIdx.x) % 8 * 8;
    std::uint32_t word[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < 8; ++k) word[k / 4] |= static_cast<std::uint32_t>(tile[r + k][c]) << (k % 4 * 8);
    *reinterpret_cast<uint2*>(transposed + (col0 + c) * rows + row0 + r) = make_uint2(word[0], word[1]);
  }
  raise_amax_of_warp(out.amax, largest);
}

__device__ void set_scale(const Fp8Scales& a, int i, float largest, float factor) {
  const float scale = (a.gradients[i] ? kLargestE5m2 : kLargestE4m3) * factor / largest;
  if (!(largest > 0) || !isfinite(scale) || !isfinite(largest)) return;
  a.scale[i * kFp8Stride] = scale;
  a.inverse[i * kFp8Stride] = 1.0f / scale;
}
__global__ void scales_kernel(Fp8Scales a, float factor) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= a.count) return;
  const int slot = a.slot[i];
  a.history[slot * a.count + i] = a.amax[i];
  a.slot[i] = (slot + 1) % kFp8History;
  a.amax[i] = 0;
  float largest = 0;
  for (int k = 0; k < kFp8History; ++k) largest = fmaxf(largest, a.history[k * a.count + i]);
  set_scale(a, i, largest, factor);
}
__global__ void current_kernel(Fp8Scales a, int i, float factor) { set_scale(a, i, a.amax[i], factor); }

}  // namespace

void measure_amax(const Bf16* x, std::int64_t count, float* amax, cudaStream_t stream) {
  require(count % kVector == 0, "measure_amax", "the count must be a multiple of 8");
  if (count == 0) return;
  const std::int64_t blocks = std::min<std::int64_t>(ceil_div(count / kVector, kThreads), multiprocessors() * 8);
  amax_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(x, count / kVector, amax);
  LOCKSTEP_CUDA_LAUNCHED();
}

void quantize(const Bf16* x, const Fp8Output& out, std::int64_t count, cudaStream_t stream) {
  require(count % kVector == 0, "quantize", "the count must be a multiple of 8");
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>(ceil_div(count / kVector, kThreads));
  if (out.format == Fp8Format::kE4m3)
    quantize_kernel<Fp8Format::kE4m3><<<blocks, kThreads, 0, stream>>>(x, out, count / kVector);
  else
    quantize_kernel<Fp8Format::kE5m2><<<blocks, kThreads, 0, stream>>>(x, out, count / kVector);
  LOCKSTEP_CUDA_LAUNCHED();
}

void quantize_transpose(const Bf16* x, const Fp8Output& out, std::uint8_t* transposed, std::int64_t rows,
                        std::int64_t cols, cudaStream_t stream) {
  require(rows % kTile == 0 && cols % kTile == 0, "quantize_transpose", "rows and columns must be multiples of 64");
  if (rows == 0 || cols == 0) return;
  const dim3 grid(static_cast<unsigned>(cols / kTile), static_cast<unsigned>(rows / kTile));
  if (out.format == Fp8Format::kE4m3)
    transpose_kernel<Fp8Format::kE4m3><<<grid, kThreads, 0, stream>>>(x, out, transposed, rows, cols);
  else
    transpose_kernel<Fp8Format::kE5m2><<<grid, kThreads, 0, stream>>>(x, out, transposed, rows, cols);
  LOCKSTEP_CUDA_LAUNCHED();
}

void update_scales(const Fp8Scales& a, float margin, cudaStream_t stream) {
  if (a.count == 0) return;
  scales_kernel<<<static_cast<unsigned>(ceil_div(a.count, 128)), 128, 0, stream>>>(a, exp2f(-margin));
  LOCKSTEP_CUDA_LAUNCHED();
}

void current_scale(const Fp8Scales& a, int tensor, float margin, cudaStream_t stream) {
  current_kernel<<<1, 1, 0, stream>>>(a, tensor, exp2f(-margin));
  LOCKSTEP_CUDA_LAUNCHED();
}

}  // namespace lockstep::kernels::cuda
