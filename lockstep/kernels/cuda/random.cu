#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/random.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ void write(Bf16* weight, std::int16_t* remainder, std::int64_t i, float value) {
  const std::uint32_t bits = __float_as_uint(value), half = (bits + 0x8000u) >> 16;
  reinterpret_cast<std::uint16_t*>(weight)[i] = static_cast<std::uint16_t>(half);
  reinterpret_cast<std::uint16_t*>(remainder)[i] = static_cast<std::uint16_t>(bits - (half << 16));
}

__global__ void normal_kernel(Bf16* weight, std::int16_t* remainder, std::int64_t count, float deviation,
                              std::uint32_t seed) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const std::uint32_t high = mix(static_cast<std::uint32_t>(i >> 32) ^ seed);
  const std::uint32_t a = mix(mix(static_cast<std::uint32_t>(i)) ^ high), b = mix(a ^ 0x9e3779b9u);
  // Box-Muller; the first uniform is in (0, 1].
  const float u = (static_cast<float>(a >> 8) + 1.0f) * 0x1p-24f, v = static_cast<float>(b >> 8) * 0x1p-24f;
  write(weight, remainder, i, deviation * sqrtf(-2.0f * logf(u)) * cospif(2.0f * v));
}
__global__ void uniform_kernel(Bf16* weight, std::int16_t* remainder, std::int64_t count, float bound,
                               std::uint32_t seed) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  const std::uint32_t bits = mix(mix(static_cast<std::uint32_t>(i)) ^ mix(static_cast<std::uint32_t>(i >> 32) ^ seed));
  write(weight, remainder, i, bound * (static_cast<float>(bits >> 8) * 0x1p-23f - 1.0f));
}
__global__ void value_kernel(Bf16* weight, std::int16_t* remainder, std::int64_t count, float value) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) write(weight, remainder, i, value);
}

}  // namespace

void fill_normal(Bf16* weight, std::int16_t* remainder, std::int64_t count, float deviation, std::uint32_t seed,
                 cudaStream_t stream) {
  if (count == 0) return;
  normal_kernel<<<static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0, stream>>>(weight, remainder, count,
                                                                                           deviation, seed);
  LOCKSTEP_CUDA_LAUNCHED();
}
void fill_uniform(Bf16* weight, std::int16_t* remainder, std::int64_t count, float bound, std::uint32_t seed,
                  cudaStream_t stream) {
  if (count == 0) return;
  uniform_kernel<<<static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0, stream>>>(weight, remainder, count,
                                                                                            bound, seed);
  LOCKSTEP_CUDA_LAUNCHED();
}
void fill_value(Bf16* weight, std::int16_t* remainder, std::int64_t count, float value, cudaStream_t stream) {
  if (count == 0) return;
  value_kernel<<<static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0, stream>>>(weight, remainder, count,
                                                                                          value);
  LOCKSTEP_CUDA_LAUNCHED();
}

}  // namespace lockstep::kernels::cuda
