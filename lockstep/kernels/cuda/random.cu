#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/philox.cuh"
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

// The middle of one of 2^32 equal cells of (0, 1).
__device__ double to_unit(std::uint32_t word) { return (static_cast<double>(word) + 0.5) * 0x1p-32; }
__device__ void put(double& to, double value) { to = value; }
__device__ void put(float& to, double value) { to = static_cast<float>(value); }
__device__ void put(Bf16& to, double value) { to = __float2bfloat16(static_cast<float>(value)); }  // as the host rounds

struct NormalStream {
  std::int64_t count, first;
  double mean, deviation;
  std::uint32_t key0, key1;
};
// A thread has the four draws of one counter.
template <class T>
__global__ void __launch_bounds__(kThreads) stream_normal_kernel(T* out, NormalStream a) {
  const std::int64_t counter = a.first / 4 + static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const auto bits = static_cast<std::uint64_t>(counter);
  const uint4 words = philox(make_uint4(static_cast<std::uint32_t>(bits), static_cast<std::uint32_t>(bits >> 32), 0, 0),
                             a.key0, a.key1);
  const std::uint32_t word[4] = {words.x, words.y, words.z, words.w};
  const std::int64_t at = 4 * counter - a.first;  // of the first draw
#pragma unroll
  for (int pair = 0; pair < 2; ++pair) {
    const double radius = sqrt(-2.0 * log(to_unit(word[2 * pair])));
    const double angle = 2.0 * 3.14159265358979323846 * to_unit(word[2 * pair + 1]);
    double sine, cosine;
    sincos(angle, &sine, &cosine);
    const std::int64_t i = at + 2 * pair;
    if (i >= 0 && i < a.count) put(out[i], a.mean + a.deviation * (radius * cosine));
    if (i + 1 >= 0 && i + 1 < a.count) put(out[i + 1], a.mean + a.deviation * (radius * sine));
  }
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

template <class Kernel, class... Values>
void fill(Kernel kernel, Bf16* weight, std::int16_t* remainder, std::int64_t count, cudaStream_t stream,
          Values... values) {
  if (count == 0) return;
  kernel<<<static_cast<unsigned>(ceil_div(count, kThreads)), kThreads, 0, stream>>>(weight, remainder, count,
                                                                                    values...);
  LOCKSTEP_CUDA_LAUNCHED();
}

}  // namespace

void fill_normal(Bf16* weight, std::int16_t* remainder, std::int64_t count, float deviation, std::uint32_t seed,
                 cudaStream_t stream) {
  fill(normal_kernel, weight, remainder, count, stream, deviation, seed);
}
template <class T>
void fill_stream_normal(T* out, std::int64_t count, std::int64_t first, double mean, double deviation,
                        const std::uint32_t (&key)[2], cudaStream_t stream) {
  if (count == 0) return;
  const std::int64_t counters = (first + count + 3) / 4 - first / 4;
  stream_normal_kernel<<<static_cast<unsigned>(ceil_div(counters, kThreads)), kThreads, 0, stream>>>(
      out, NormalStream{count, first, mean, deviation, key[0], key[1]});
  LOCKSTEP_CUDA_LAUNCHED();
}
template void fill_stream_normal(double*, std::int64_t, std::int64_t, double, double, const std::uint32_t (&)[2],
                                 cudaStream_t);
template void fill_stream_normal(float*, std::int64_t, std::int64_t, double, double, const std::uint32_t (&)[2],
                                 cudaStream_t);
template void fill_stream_normal(Bf16*, std::int64_t, std::int64_t, double, double, const std::uint32_t (&)[2],
                                 cudaStream_t);
void fill_uniform(Bf16* weight, std::int16_t* remainder, std::int64_t count, float bound, std::uint32_t seed,
                  cudaStream_t stream) {
  fill(uniform_kernel, weight, remainder, count, stream, bound, seed);
}
void fill_value(Bf16* weight, std::int16_t* remainder, std::int64_t count, float value, cudaStream_t stream) {
  fill(value_kernel, weight, remainder, count, stream, value);
}

}  // namespace lockstep::kernels::cuda
