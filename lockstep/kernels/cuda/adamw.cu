#include <cmath>

#include "lockstep/kernels/cuda/adamw.h"
#include "lockstep/kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;

__device__ float join(std::uint32_t weight_bits, std::int16_t remainder) {
  return __uint_as_float((weight_bits << 16) + static_cast<std::uint32_t>(static_cast<std::int32_t>(remainder)));
}
struct Halves {
  std::uint32_t weight;  // low 16 bits used
  std::uint32_t remainder;
};
__device__ Halves split(float master) {
  const std::uint32_t bits = __float_as_uint(master);
  const std::uint32_t weight = (bits + 0x8000u) >> 16;
  return {weight & 0xffffu, (bits - (weight << 16)) & 0xffffu};
}

__device__ std::uint32_t round_stochastically(float value, std::uint32_t random16) {
  return (__float_as_uint(value) + random16) >> 16;
}

struct Random {
  std::uint32_t seed, index_low, index_high;
  __device__ std::uint32_t operator()(int i) const { return mix(mix(index_low + i) ^ seed ^ index_high); }
};

__device__ void load_state(const float* p, float (&f)[kVector]) {
  const float4 a = __ldcs(reinterpret_cast<const float4*>(p)), b = __ldcs(reinterpret_cast<const float4*>(p) + 1);
  f[0] = a.x, f[1] = a.y, f[2] = a.z, f[3] = a.w, f[4] = b.x, f[5] = b.y, f[6] = b.z, f[7] = b.w;
}
__device__ void load_state(const Bf16* p, float (&f)[kVector]) { unpack(load_once(p), f); }

__device__ void store_state(float* p, const float (&f)[kVector], const Random&, int) {
  __stcs(reinterpret_cast<float4*>(p), make_float4(f[0], f[1], f[2], f[3]));
  __stcs(reinterpret_cast<float4*>(p) + 1, make_float4(f[4], f[5], f[6], f[7]));
}
// `shift` 0 or 16: m takes the low half of each random word and v the high one.
__device__ void store_state(Bf16* p, const float (&f)[kVector], const Random& random, int shift) {
  Vector v;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    v.word[i] = round_stochastically(f[2 * i], (random(2 * i) >> shift) & 0xffffu) |
                (round_stochastically(f[2 * i + 1], (random(2 * i + 1) >> shift) & 0xffffu) << 16);
  store(p, v);
}

template <class Gradient, class State>
__global__ void __launch_bounds__(kThreads) adamw_kernel(AdamW<Gradient, State> a) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVector;
  const float factor = a.gradient_factor != nullptr ? *a.gradient_factor : 1.0f;
  if (i >= a.count || isnan(factor)) return;
  float g[kVector], m[kVector], v[kVector];
  load_state(a.gradient + i, g);
  load_state(a.m + i, m);
  load_state(a.v + i, v);
  const Vector weight = load(a.weight + i), remainder = load_once(reinterpret_cast<const Bf16*>(a.remainder + i));
  const AdamWStep s = *a.step;
  const float rate = s.learning_rate / s.correction1, keep = 1.0f - s.learning_rate * a.weight_decay;
  const float inverse_root = 1.0f / s.correction2_root;
  Vector new_weight, new_remainder;
#pragma unroll
  for (int k = 0; k < kVector; ++k) {
    const int shift = k % 2 * 16;
    const float gradient = g[k] * factor;
    m[k] = s.beta1 * m[k] + (1.0f - s.beta1) * gradient;
    v[k] = s.beta2 * v[k] + (1.0f - s.beta2) * gradient * gradient;
    float w = join((weight.word[k / 2] >> shift) & 0xffffu,
                   static_cast<std::int16_t>((remainder.word[k / 2] >> shift) & 0xffffu));
    w = w * keep - rate * __fdividef(m[k], sqrtf(v[k]) * inverse_root + s.epsilon);
    const Halves h = split(w);
    if (shift == 0) {
      new_weight.word[k / 2] = h.weight;
      new_remainder.word[k / 2] = h.remainder;
    } else {
      new_weight.word[k / 2] |= h.weight << 16;
      new_remainder.word[k / 2] |= h.remainder << 16;
    }
  }
  const std::int64_t place = a.first_index + i;
  const Random random{s.seed, static_cast<std::uint32_t>(place), mix(static_cast<std::uint32_t>(place >> 32))};
  store(a.weight + i, new_weight);
  store(reinterpret_cast<Bf16*>(a.remainder + i), new_remainder);
  store_state(a.m + i, m, random, 0);
  store_state(a.v + i, v, random, 16);
}

__global__ void split_kernel(const float* master, Bf16* weight, std::int16_t* remainder, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= count) return;
  const Halves h = split(master[i]);
  reinterpret_cast<std::uint16_t*>(weight)[i] = static_cast<std::uint16_t>(h.weight);
  reinterpret_cast<std::uint16_t*>(remainder)[i] = static_cast<std::uint16_t>(h.remainder);
}
__global__ void join_kernel(const Bf16* weight, const std::int16_t* remainder, float* master, std::int64_t count) {
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i < count) master[i] = join(reinterpret_cast<const std::uint16_t*>(weight)[i], remainder[i]);
}

template <class Gradient>
__global__ void __launch_bounds__(kThreads) squares_kernel(const Gradient* gradient, std::int64_t count, float* parts) {
  __shared__ float slot[kWarp];
  float sum = 0;
  const std::int64_t vectors = count / kVector, stride = static_cast<std::int64_t>(gridDim.x) * kThreads;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < vectors; i += stride) {
    float g[kVector];
    load_state(gradient + i * kVector, g);
#pragma unroll
    for (float value : g) sum += value * value;
  }
  if (blockIdx.x == 0)
    for (std::int64_t i = vectors * kVector + threadIdx.x; i < count; i += kThreads) {
      const float value = static_cast<float>(gradient[i]);
      sum += value * value;
    }
  sum = block_sum(sum, slot);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    clip_kernel(const float* parts, int count, float limit, float* norm, float* factor) {
  __shared__ float slot[kWarp];
  float sum = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) sum += parts[i];
  sum = sqrtf(block_sum(sum, slot));
  if (threadIdx.x != 0) return;
  *norm = sum;
  *factor = !isfinite(sum) ? NAN : limit > 0 ? fminf(1.0f, limit / (sum + 1e-6f)) : 1.0f;
}

unsigned blocks_of(std::int64_t items) { return static_cast<unsigned>(ceil_div(items, kThreads)); }

}  // namespace

AdamWStep adamw_step(double learning_rate, double beta1, double beta2, double epsilon, std::int64_t step) {
  AdamWStep s;
  s.learning_rate = static_cast<float>(learning_rate);
  s.beta1 = static_cast<float>(beta1);
  s.beta2 = static_cast<float>(beta2);
  s.epsilon = static_cast<float>(epsilon);
  s.correction1 = static_cast<float>(1 - std::pow(beta1, static_cast<double>(step)));
  s.correction2_root = static_cast<float>(std::sqrt(1 - std::pow(beta2, static_cast<double>(step))));
  s.seed = static_cast<std::uint32_t>(step) * 2654435761u;
  return s;
}

template <class Gradient, class State>
void adamw(const AdamW<Gradient, State>& a, cudaStream_t stream) {
  require(a.count % kVector == 0, "adamw", "the count must be a multiple of 8");
  if (a.count == 0) return;
  adamw_kernel<<<blocks_of(a.count / kVector), kThreads, 0, stream>>>(a);
  LOCKSTEP_CUDA_LAUNCHED();
}
template void adamw(const AdamW<float, float>&, cudaStream_t);
template void adamw(const AdamW<Bf16, float>&, cudaStream_t);
template void adamw(const AdamW<float, Bf16>&, cudaStream_t);
template void adamw(const AdamW<Bf16, Bf16>&, cudaStream_t);

void split_master(const float* master, Bf16* weight, std::int16_t* remainder, std::int64_t count, cudaStream_t stream) {
  if (count == 0) return;
  split_kernel<<<blocks_of(count), kThreads, 0, stream>>>(master, weight, remainder, count);
  LOCKSTEP_CUDA_LAUNCHED();
}
void join_master(const Bf16* weight, const std::int16_t* remainder, float* master, std::int64_t count,
                 cudaStream_t stream) {
  if (count == 0) return;
  join_kernel<<<blocks_of(count), kThreads, 0, stream>>>(weight, remainder, master, count);
  LOCKSTEP_CUDA_LAUNCHED();
}

template <class Gradient>
void sum_of_squares(const Gradient* gradient, std::int64_t count, float* parts, cudaStream_t stream) {
  squares_kernel<<<kNormParts, kThreads, 0, stream>>>(gradient, count, parts);
  LOCKSTEP_CUDA_LAUNCHED();
}
template void sum_of_squares(const float*, std::int64_t, float*, cudaStream_t);
template void sum_of_squares(const Bf16*, std::int64_t, float*, cudaStream_t);

void gradient_clip(const float* parts, int groups, float limit, float* norm, float* factor, cudaStream_t stream) {
  clip_kernel<<<1, kThreads, 0, stream>>>(parts, groups * kNormParts, limit, norm, factor);
  LOCKSTEP_CUDA_LAUNCHED();
}

}  // namespace lockstep::kernels::cuda
