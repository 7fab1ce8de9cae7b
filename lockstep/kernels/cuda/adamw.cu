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

// Four neighbours at a time: 16 bytes of floats or 8 of bf16, so that the loads of a warp are contiguous whatever the
// type. Eight per thread would read floats in two halves of every sector.
constexpr int kFour = 4;
struct alignas(8) Halfwords {
  std::uint32_t word[2];
  __device__ std::uint32_t operator[](int i) const { return (word[i / 2] >> (i % 2 * 16)) & 0xffffu; }
};
__device__ Halfwords load_halfwords(const void* p) {
  const uint2 u = __ldcs(static_cast<const uint2*>(p));
  return {{u.x, u.y}};
}
__device__ void store_halfwords(void* p, const std::uint32_t (&h)[kFour]) {
  *static_cast<uint2*>(p) = make_uint2(h[0] | h[1] << 16, h[2] | h[3] << 16);
}
__device__ void load_four(const float* p, float (&f)[kFour]) {
  const float4 a = __ldcs(reinterpret_cast<const float4*>(p));
  f[0] = a.x, f[1] = a.y, f[2] = a.z, f[3] = a.w;
}
__device__ void load_four(const Bf16* p, float (&f)[kFour]) {
  const Halfwords h = load_halfwords(p);
#pragma unroll
  for (int i = 0; i < kFour; ++i) f[i] = __uint_as_float(h[i] << 16);
}
__device__ void store_four(float* p, const float (&f)[kFour], const Random&, int) {
  __stcs(reinterpret_cast<float4*>(p), make_float4(f[0], f[1], f[2], f[3]));
}
// `shift` 0 or 16: m takes the low half of each random word and v the high one.
__device__ void store_four(Bf16* p, const float (&f)[kFour], const Random& random, int shift) {
  std::uint32_t h[kFour];
#pragma unroll
  for (int i = 0; i < kFour; ++i) h[i] = round_stochastically(f[i], (random(i) >> shift) & 0xffffu);
  store_halfwords(p, h);
}

// What one thread updates at a time.
struct Piece {
  float g[kFour], m[kFour], v[kFour];
  Halfwords weight, remainder;
};

template <class Gradient, class State>
__device__ Piece load_piece(const AdamW<Gradient, State>& a, std::int64_t i) {
  Piece piece;
  load_four(a.gradient + i, piece.g);
  load_four(a.m + i, piece.m);
  load_four(a.v + i, piece.v);
  piece.weight = load_halfwords(a.weight + i);
  piece.remainder = load_halfwords(a.remainder + i);
  return piece;
}

template <class Gradient, class State>
__device__ void update_piece(const AdamW<Gradient, State>& a, std::int64_t i, Piece& piece, const AdamWStep& s,
                             float factor) {
  const float rate = s.learning_rate / s.correction1, keep = 1.0f - s.learning_rate * a.weight_decay;
  const float inverse_root = 1.0f / s.correction2_root;
  std::uint32_t weight[kFour], remainder[kFour];
#pragma unroll
  for (int k = 0; k < kFour; ++k) {
    const float gradient = piece.g[k] * factor;
    piece.m[k] = s.beta1 * piece.m[k] + (1.0f - s.beta1) * gradient;
    piece.v[k] = s.beta2 * piece.v[k] + (1.0f - s.beta2) * gradient * gradient;
    float w = join(piece.weight[k], static_cast<std::int16_t>(piece.remainder[k]));
    w = w * keep - rate * __fdividef(piece.m[k], sqrtf(piece.v[k]) * inverse_root + s.epsilon);
    const Halves h = split(w);
    weight[k] = h.weight;
    remainder[k] = h.remainder;
  }
  const std::int64_t place = a.first_index + i;
  const Random random{s.seed, static_cast<std::uint32_t>(place), mix(static_cast<std::uint32_t>(place >> 32))};
  store_halfwords(a.weight + i, weight);
  store_halfwords(a.remainder + i, remainder);
  store_four(a.m + i, piece.m, random, 0);
  store_four(a.v + i, piece.v, random, 16);
}

// Two pieces per thread, a block apart, all loads before the first use.
template <class Gradient, class State>
__global__ void __launch_bounds__(kThreads) adamw_kernel(AdamW<Gradient, State> a) {
  constexpr int kApart = kThreads * kFour;
  const std::int64_t first = static_cast<std::int64_t>(blockIdx.x) * 2 * kApart + threadIdx.x * kFour;
  const std::int64_t second = first + kApart;
  const float factor = a.gradient_factor != nullptr ? *a.gradient_factor : 1.0f;
  if (first >= a.count || isnan(factor)) return;
  Piece one = load_piece(a, first), two{};
  if (second < a.count) two = load_piece(a, second);
  const AdamWStep s = *a.step;
  update_piece(a, first, one, s, factor);
  if (second < a.count) update_piece(a, second, two, s, factor);
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
    load_as_floats(gradient + i * kVector, g);
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
  adamw_kernel<<<static_cast<unsigned>(ceil_div(a.count, 2 * kThreads * kFour)), kThreads, 0, stream>>>(a);
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
