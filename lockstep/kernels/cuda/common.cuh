// Device helpers shared by the kernels: 16-byte vectors of bf16, reductions, conversion to 8 bits.
#pragma once

#include <cuda_fp8.h>

#include "lockstep/kernels/cuda/check.h"
#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

constexpr int kVector = 8;  // bf16 elements in 16 bytes
constexpr int kWarp = 32;
// Indices of vectors are 32 bits wide where they are divided: 64-bit division is slow. A block of margin.
constexpr std::int64_t kIndexLimit = (std::int64_t{1} << 32) - 4096;

// Eight bf16 as they lie in memory; converted where they are used, which costs fewer registers than eight floats.
struct alignas(16) Vector {
  std::uint32_t word[4];

  __device__ float low(int i) const { return __uint_as_float(word[i] << 16); }
  __device__ float high(int i) const { return __uint_as_float(word[i] & 0xffff0000u); }
  __device__ float operator[](int i) const { return i % 2 ? high(i / 2) : low(i / 2); }
};

__device__ inline Vector load(const Bf16* p) {
  const uint4 u = *reinterpret_cast<const uint4*>(p);
  return {{u.x, u.y, u.z, u.w}};
}
// For data that is read once: leaves the cache to others.
__device__ inline Vector load_once(const Bf16* p) {
  const uint4 u = __ldcs(reinterpret_cast<const uint4*>(p));
  return {{u.x, u.y, u.z, u.w}};
}
__device__ inline void store(Bf16* p, const Vector& v) {
  *reinterpret_cast<uint4*>(p) = make_uint4(v.word[0], v.word[1], v.word[2], v.word[3]);
}
__device__ inline Vector pack(const float (&f)[kVector]) {
  Vector v;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(f[2 * i], f[2 * i + 1]);
    v.word[i] = *reinterpret_cast<const std::uint32_t*>(&pair);
  }
  return v;
}
__device__ inline void unpack(const Vector& v, float (&f)[kVector]) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) f[i] = v[i];
}
__device__ inline void load_floats(const float* p, float (&f)[kVector]) {
  const float4 a = *reinterpret_cast<const float4*>(p), b = *reinterpret_cast<const float4*>(p + 4);
  f[0] = a.x, f[1] = a.y, f[2] = a.z, f[3] = a.w, f[4] = b.x, f[5] = b.y, f[6] = b.z, f[7] = b.w;
}
__device__ inline void store_floats(float* p, const float (&f)[kVector]) {
  *reinterpret_cast<float4*>(p) = make_float4(f[0], f[1], f[2], f[3]);
  *reinterpret_cast<float4*>(p + 4) = make_float4(f[4], f[5], f[6], f[7]);
}
__device__ inline void load_as_floats(const float* p, float (&f)[kVector]) { load_floats(p, f); }
__device__ inline void load_as_floats(const Bf16* p, float (&f)[kVector]) { unpack(load(p), f); }
__device__ inline void store_from_floats(float* p, const float (&f)[kVector]) { store_floats(p, f); }
__device__ inline void store_from_floats(Bf16* p, const float (&f)[kVector]) { store(p, pack(f)); }

__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}
__device__ inline float warp_max(float value) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}

// A hash with full avalanche (Mueller's 32-bit mixer): random enough to round and to fill with, one result per input.
__device__ inline std::uint32_t mix(std::uint32_t x) {
  x = ((x >> 16) ^ x) * 0x45d9f3bu;
  x = ((x >> 16) ^ x) * 0x45d9f3bu;
  return (x >> 16) ^ x;
}

// Sum over the block, the same in every thread, with one barrier: calls alternate `slot` between two sets of 32 floats
// of shared memory, so that a late reader of one set is never overtaken by the next call's writers.
__device__ inline float block_sum(float value, float* slot) {
  value = warp_sum(value);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, warps = (blockDim.x + kWarp - 1) / kWarp;
  if (lane == 0) slot[warp] = value;
  __syncthreads();
  return warp_sum(lane < warps ? slot[lane] : 0.0f);
}

// `value` >= 0. Reads first: after the first few blocks hardly any needs the atomic.
__device__ inline void raise_amax(float* amax, float value) {
  if (value > *static_cast<volatile float*>(amax)) atomicMax(reinterpret_cast<int*>(amax), __float_as_int(value));
}
// One call per warp's lane: the warp's maximum is raised once.
__device__ inline void raise_amax_of_warp(float* amax, float value) {
  value = warp_max(value);
  if (threadIdx.x % kWarp == 0) raise_amax(amax, value);
}

template <Fp8Format kFormat>
__device__ inline std::uint32_t to_fp8x4(float a, float b, float c, float d) {
  constexpr __nv_fp8_interpretation_t kind = kFormat == Fp8Format::kE4m3 ? __NV_E4M3 : __NV_E5M2;
  const std::uint32_t low = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, kind);
  const std::uint32_t high = __nv_cvt_float2_to_fp8x2(make_float2(c, d), __NV_SATFINITE, kind);
  return low | (high << 16);
}
// Stores eight values as 8 bits at `p` (8-byte aligned) and returns the largest magnitude.
template <Fp8Format kFormat>
__device__ inline float store_fp8(std::uint8_t* p, const float (&f)[kVector], float scale) {
  float largest = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) largest = fmaxf(largest, fabsf(f[i]));
  *reinterpret_cast<uint2*>(p) = make_uint2(to_fp8x4<kFormat>(f[0] * scale, f[1] * scale, f[2] * scale, f[3] * scale),
                                            to_fp8x4<kFormat>(f[4] * scale, f[5] * scale, f[6] * scale, f[7] * scale));
  return largest;
}

// Which optional outputs a kernel was compiled for.
enum class Extra { kNone, kE4m3, kE5m2 };
inline Extra extra_of(const Fp8Output& output) {
  if (output.data == nullptr) return Extra::kNone;
  return output.format == Fp8Format::kE4m3 ? Extra::kE4m3 : Extra::kE5m2;
}
template <Extra kExtra>
constexpr Fp8Format kFormatOf = kExtra == Extra::kE5m2 ? Fp8Format::kE5m2 : Fp8Format::kE4m3;

// Calls f.template operator()<Extra>() for the extra output asked for.
template <class F>
void with_extra(const Fp8Output& output, F f) {
  switch (extra_of(output)) {
    case Extra::kNone:
      f.template operator()<Extra::kNone>();
      break;
    case Extra::kE4m3:
      f.template operator()<Extra::kE4m3>();
      break;
    case Extra::kE5m2:
      f.template operator()<Extra::kE5m2>();
      break;
  }
}

// Throws std::invalid_argument("[where] message").
void require(bool condition, const char* where, const char* message);

// Multiprocessors of the current device (asked once per call: cheap, and no global state).
int multiprocessors();

inline std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// A launch with one thread for each vector of [rows, cols].
struct VectorGrid {
  unsigned per_row = 0, total = 0, blocks = 0;
};
inline VectorGrid vector_grid(std::int64_t rows, std::int64_t cols, int threads, const char* where) {
  require(cols > 0 && cols % kVector == 0, where, "columns must be a multiple of 8");
  const std::int64_t per_row = cols / kVector, total = rows * per_row;
  require(total < kIndexLimit, where, "too many elements for one launch");
  return {static_cast<unsigned>(per_row), static_cast<unsigned>(total),
          static_cast<unsigned>(ceil_div(total, threads))};
}

}  // namespace lockstep::kernels::cuda
