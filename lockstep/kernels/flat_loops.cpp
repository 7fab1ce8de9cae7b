#include "lockstep/kernels/flat_loops.h"

#include <cmath>
#include <cstring>

#include "lockstep/kernels/multiversion.h"

// Compiled with -ffp-contract=off (CMakeLists.txt): with fused multiply-add in one clone and not in another, ranks on
// unlike processors would drift apart.
namespace lockstep::kernels {
namespace {

template <typename T>
LOCKSTEP_INLINE void adamw_loop(T* __restrict p, const T* __restrict g, T* __restrict m, T* __restrict v,
                                std::int64_t n, const AdamWConstants<T>& constants) {
  const AdamWConstants<T> c = constants;
  for (std::int64_t i = 0; i < n; ++i) {
    const T gradient = g[i] * c.gradient_factor;
    const T first = c.beta1 * m[i] + c.one_minus_beta1 * gradient;
    const T second = c.beta2 * v[i] + c.one_minus_beta2 * (gradient * gradient);
    const T denominator = std::sqrt(second) * c.inverse_root_correction2 + c.epsilon;
    m[i] = first;
    v[i] = second;
    p[i] = p[i] * c.keep - c.step_size * (first / denominator);
  }
}

template <typename T>
LOCKSTEP_INLINE void sgd_loop(T* __restrict p, const T* __restrict g, T* __restrict b, std::int64_t n,
                              const SgdConstants<T>& constants) {
  const SgdConstants<T> c = constants;
  if (b == nullptr) {
    for (std::int64_t i = 0; i < n; ++i) {
      p[i] = p[i] - c.learning_rate * (g[i] * c.gradient_factor + c.weight_decay * p[i]);
    }
    return;
  }
  // nesterov ? g + momentum * b : b, without a branch in the loop.
  const T of_gradient = c.nesterov ? T(1) : T(0);
  const T of_buffer = c.nesterov ? c.momentum : T(1);
  for (std::int64_t i = 0; i < n; ++i) {
    const T gradient = g[i] * c.gradient_factor + c.weight_decay * p[i];
    const T buffer = c.momentum * b[i] + gradient;
    b[i] = buffer;
    p[i] = p[i] - c.learning_rate * (of_gradient * gradient + of_buffer * buffer);
  }
}

template <typename T>
LOCKSTEP_INLINE double squared_sum_loop(const T* __restrict x, std::int64_t n) {
  double lanes[kNormLanes] = {};
  std::int64_t i = 0;
  for (; i + kNormLanes <= n; i += kNormLanes) {
    for (int lane = 0; lane < kNormLanes; ++lane) {
      const double value = static_cast<double>(x[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (int lane = 0; i < n; ++i, ++lane) {
    const double value = static_cast<double>(x[i]);
    lanes[lane] += value * value;
  }
  for (int width = kNormLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) lanes[lane] += lanes[lane + width];
  }
  return lanes[0];
}

LOCKSTEP_INLINE std::uint32_t bits_of(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return bits;
}

LOCKSTEP_INLINE float float_of(std::uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof(x));
  return x;
}

constexpr std::uint32_t kInfinityBits = 0x7f800000u;

LOCKSTEP_INLINE std::uint16_t bf16_of(float x) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<std::uint16_t>((bits & 0x7fffffffu) > kInfinityBits ? 0x7fc0u : rounded);
}

LOCKSTEP_INLINE std::uint16_t fp16_of(float x) {
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  // Rebias the exponent by 15 - 127 and round the mantissa to ten bits; a carry moves into the exponent as it should.
  const std::uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14 the result counts units of 2^-24, which is the last place of a float near 0.5: let the adder round.
  const std::uint32_t subnormal = bits_of(float_of(magnitude) + 0.5f) - bits_of(0.5f);
  std::uint32_t half = magnitude < (113u << 23) ? subnormal : normal;
  half = magnitude >= 0x477ff000u ? 0x7c00u : half;  // 65520 and above round to infinity
  half = magnitude > kInfinityBits ? 0x7e00u : half;
  return static_cast<std::uint16_t>(sign | half);
}

}  // namespace

LOCKSTEP_MULTIVERSION void adamw_stretch(float* p, const float* g, float* m, float* v, std::int64_t n,
                                         const AdamWConstants<float>& c) {
  adamw_loop(p, g, m, v, n, c);
}

LOCKSTEP_MULTIVERSION void adamw_stretch(double* p, const double* g, double* m, double* v, std::int64_t n,
                                         const AdamWConstants<double>& c) {
  adamw_loop(p, g, m, v, n, c);
}

LOCKSTEP_MULTIVERSION void sgd_stretch(float* p, const float* g, float* b, std::int64_t n,
                                       const SgdConstants<float>& c) {
  sgd_loop(p, g, b, n, c);
}

LOCKSTEP_MULTIVERSION void sgd_stretch(double* p, const double* g, double* b, std::int64_t n,
                                       const SgdConstants<double>& c) {
  sgd_loop(p, g, b, n, c);
}

LOCKSTEP_MULTIVERSION double squared_sum(const float* x, std::int64_t n) { return squared_sum_loop(x, n); }
LOCKSTEP_MULTIVERSION double squared_sum(const double* x, std::int64_t n) { return squared_sum_loop(x, n); }

LOCKSTEP_MULTIVERSION void round_to_bf16(const float* __restrict x, std::uint16_t* __restrict out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = bf16_of(x[i]);
}

LOCKSTEP_MULTIVERSION void round_to_fp16(const float* __restrict x, std::uint16_t* __restrict out, std::int64_t n) {
  for (std::int64_t i = 0; i < n; ++i) out[i] = fp16_of(x[i]);
}

}  // namespace lockstep::kernels
