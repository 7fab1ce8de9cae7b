#include <algorithm>
#include <type_traits>

#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/flat_optimizer.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWide = 4;  // elements of a thread: 16 bytes of fp32

template <class T>
struct alignas(sizeof(T) * kWide) Four {
  T at[kWide];
};

template <class T>
__device__ void adamw_element(T& p, T g, T& m, T& v, const FlatAdamW<T>& s) {
  g *= s.gradient_factor;
  m = s.beta1 * m + s.one_minus_beta1 * g;
  v = s.beta2 * v + s.one_minus_beta2 * (g * g);
  p = p * s.keep - s.step_size * (m / (sqrt(v) * s.inverse_root_correction2 + s.epsilon));
}

template <class T>
__device__ void sgd_element(T& p, T g, T* b, const FlatSgd<T>& s) {
  g = g * s.gradient_factor + s.weight_decay * p;
  if (b != nullptr) {
    *b = s.momentum * *b + g;
    g = s.nesterov ? g + s.momentum * *b : *b;
  }
  p -= s.learning_rate * g;
}

template <class T>
__device__ void round_copy(const FlatArrays<T>& a, std::int64_t i, T value) {
  if (a.copy_type == CopyType::kBf16) static_cast<Bf16*>(a.copy)[i] = __float2bfloat16_rn(static_cast<float>(value));
  if (a.copy_type == CopyType::kFp16) static_cast<__half*>(a.copy)[i] = __float2half_rn(static_cast<float>(value));
}

template <class T>
__device__ void round_copies(const FlatArrays<T>& a, std::int64_t i, const Four<T>& p) {
  if (a.copy_type == CopyType::kNone) return;
  Four<std::uint16_t> bits;
#pragma unroll
  for (int k = 0; k < kWide; ++k)
    bits.at[k] = a.copy_type == CopyType::kBf16 ? __bfloat16_as_ushort(__float2bfloat16_rn(static_cast<float>(p.at[k])))
                                                : __half_as_ushort(__float2half_rn(static_cast<float>(p.at[k])));
  *reinterpret_cast<Four<std::uint16_t>*>(static_cast<std::uint16_t*>(a.copy) + i) = bits;
}

template <class T>
__device__ T gradient_at(const FlatArrays<T>& a, std::int64_t i) {
  return a.narrow_gradient != nullptr ? static_cast<T>(__bfloat162float(a.narrow_gradient[i])) : a.gradient[i];
}

template <class T>
__device__ Four<T> gradients_at(const FlatArrays<T>& a, std::int64_t i) {
  if (a.narrow_gradient == nullptr) return *reinterpret_cast<const Four<T>*>(a.gradient + i);
  const auto bits = *reinterpret_cast<const Four<std::uint16_t>*>(a.narrow_gradient + i);
  Four<T> g;
#pragma unroll
  for (int k = 0; k < kWide; ++k)
    g.at[k] = static_cast<T>(__uint_as_float(static_cast<std::uint32_t>(bits.at[k]) << 16));
  return g;
}

template <class T>
__global__ void __launch_bounds__(kThreads) adamw_kernel(FlatArrays<T> a, FlatAdamW<T> s, bool wide) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWide;
  if (wide && i + kWide <= a.count) {
    auto p = *reinterpret_cast<const Four<T>*>(a.parameter + i), m = *reinterpret_cast<const Four<T>*>(a.first + i);
    auto v = *reinterpret_cast<const Four<T>*>(a.second + i);
    const Four<T> g = gradients_at(a, i);
#pragma unroll
    for (int k = 0; k < kWide; ++k) adamw_element(p.at[k], g.at[k], m.at[k], v.at[k], s);
    *reinterpret_cast<Four<T>*>(a.parameter + i) = p;
    *reinterpret_cast<Four<T>*>(a.first + i) = m;
    *reinterpret_cast<Four<T>*>(a.second + i) = v;
    return round_copies(a, i, p);
  }
  for (std::int64_t k = i; k < min(i + kWide, a.count); ++k) {
    adamw_element(a.parameter[k], gradient_at(a, k), a.first[k], a.second[k], s);
    round_copy(a, k, a.parameter[k]);
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) sgd_kernel(FlatArrays<T> a, FlatSgd<T> s, bool wide) {
  const std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kWide;
  if (wide && i + kWide <= a.count) {
    auto p = *reinterpret_cast<const Four<T>*>(a.parameter + i);
    const Four<T> g = gradients_at(a, i);
    Four<T> b{};
    if (a.first != nullptr) b = *reinterpret_cast<const Four<T>*>(a.first + i);
#pragma unroll
    for (int k = 0; k < kWide; ++k) sgd_element(p.at[k], g.at[k], a.first != nullptr ? &b.at[k] : nullptr, s);
    *reinterpret_cast<Four<T>*>(a.parameter + i) = p;
    if (a.first != nullptr) *reinterpret_cast<Four<T>*>(a.first + i) = b;
    return round_copies(a, i, p);
  }
  for (std::int64_t k = i; k < min(i + kWide, a.count); ++k) {
    sgd_element(a.parameter[k], gradient_at(a, k), a.first != nullptr ? a.first + k : nullptr, s);
    round_copy(a, k, a.parameter[k]);
  }
}

// Sum over the block in every thread of the first warp.
__device__ double block_sum_of(double value) {
  __shared__ double slot[kWarp];
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (lane == 0) slot[warp] = value;
  __syncthreads();
  value = lane < kThreads / kWarp ? slot[lane] : 0.0;
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}

// Squares of 16 bytes of values. In fp64, but for bf16: there products are exact in fp32, and eight of them lose
// nothing that matters.
__device__ double squares_of(const float* p) {
  const auto v = *reinterpret_cast<const float4*>(p);
  const double x = v.x, y = v.y, z = v.z, w = v.w;
  return (x * x + y * y) + (z * z + w * w);
}
__device__ double squares_of(const double* p) {
  const auto v = *reinterpret_cast<const double2*>(p);
  return v.x * v.x + v.y * v.y;
}
__device__ double squares_of(const Bf16* p) {
  const Vector v = load_once(p);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum += v[i] * v[i];
  return sum;
}
template <class T>
__device__ double square_of(T value) {
  const double wide = std::is_same_v<T, double> ? static_cast<double>(value) : static_cast<float>(value);
  return wide * wide;
}

template <class T>
__global__ void __launch_bounds__(kThreads)
    squares_kernel(const T* values, std::int64_t count, bool wide, double* parts) {
  constexpr int kEach = 16 / sizeof(T);
  double sum = 0;
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * kThreads * kEach;
  for (std::int64_t i = (static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kEach; i < count;
       i += stride) {
    if (wide && i + kEach <= count) {
      sum += squares_of(values + i);
    } else {
      for (std::int64_t k = i; k < min(i + kEach, count); ++k) sum += square_of(values[k]);
    }
  }
  sum = block_sum_of(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads) join_squares_kernel(const double* parts, int count, double* sum) {
  double total = 0;
  for (int i = threadIdx.x; i < count; i += kThreads) total += parts[i];
  total = block_sum_of(total);
  if (threadIdx.x == 0) *sum += total;
}

bool aligned(const void* pointer, std::size_t bytes) { return reinterpret_cast<std::uintptr_t>(pointer) % bytes == 0; }

// Whether all arrays may be read four elements at a time.
template <class T>
bool takes_wide(const FlatArrays<T>& a) {
  constexpr std::size_t kBytes = sizeof(T) * kWide;
  return aligned(a.parameter, kBytes) && aligned(a.gradient, kBytes) && aligned(a.first, kBytes) &&
         aligned(a.second, kBytes) && aligned(a.copy, 2 * kWide) && aligned(a.narrow_gradient, 2 * kWide);
}

unsigned blocks_of(std::int64_t count) { return static_cast<unsigned>(ceil_div(count, kThreads * kWide)); }

}  // namespace

template <class T>
void flat_adamw(const FlatArrays<T>& a, const FlatAdamW<T>& step, cudaStream_t stream) {
  if (a.count == 0) return;
  adamw_kernel<<<blocks_of(a.count), kThreads, 0, stream>>>(a, step, takes_wide(a));
  LOCKSTEP_CUDA_LAUNCHED();
}
template void flat_adamw(const FlatArrays<float>&, const FlatAdamW<float>&, cudaStream_t);
template void flat_adamw(const FlatArrays<double>&, const FlatAdamW<double>&, cudaStream_t);

template <class T>
void flat_sgd(const FlatArrays<T>& a, const FlatSgd<T>& step, cudaStream_t stream) {
  if (a.count == 0) return;
  sgd_kernel<<<blocks_of(a.count), kThreads, 0, stream>>>(a, step, takes_wide(a));
  LOCKSTEP_CUDA_LAUNCHED();
}
template void flat_sgd(const FlatArrays<float>&, const FlatSgd<float>&, cudaStream_t);
template void flat_sgd(const FlatArrays<double>&, const FlatSgd<double>&, cudaStream_t);

template <class T>
void add_squares(const T* values, std::int64_t count, double* parts, double* sum, cudaStream_t stream) {
  if (count == 0) return;
  const auto blocks = std::min<unsigned>(kSquareParts, blocks_of(count));
  squares_kernel<<<blocks, kThreads, 0, stream>>>(values, count, aligned(values, 16), parts);
  LOCKSTEP_CUDA_LAUNCHED();
  join_squares_kernel<<<1, kThreads, 0, stream>>>(parts, static_cast<int>(blocks), sum);
  LOCKSTEP_CUDA_LAUNCHED();
}
template void add_squares(const Bf16*, std::int64_t, double*, double*, cudaStream_t);
template void add_squares(const float*, std::int64_t, double*, double*, cudaStream_t);
template void add_squares(const double*, std::int64_t, double*, double*, cudaStream_t);

}  // namespace lockstep::kernels::cuda
