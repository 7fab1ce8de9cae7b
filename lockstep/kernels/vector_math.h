// exp and sigmoid as branch-free code that the compiler vectorises inside LOCKSTEP_MULTIVERSION loops; libm's are
// calls.
//
// exp: x = k ln2 + r with |r| <= ln2 / 2, then 2^k times the Taylor polynomial of e^r. Relative error below 2e-7 in
// fp32 and 4e-16 in fp64. Below the smallest normal number the result is 0, above the largest it stays at about e^88.37
// or e^709.4; NaN stays NaN.
#pragma once

#include <cstdint>
#include <cstring>

#include "lockstep/kernels/multiversion.h"

namespace lockstep::kernels {

// p r^n + ... with the coefficients from the highest power down.
template <typename T, typename... Rest>
LOCKSTEP_INLINE T polynomial(T r, T p, Rest... rest) {
  ((p = p * r + rest), ...);
  return p;
}

LOCKSTEP_INLINE float vexp(float x) {
  constexpr float kLow = -87.33654f;
  constexpr float kHigh = 88.37626f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  float y = x < kLow ? kLow : x;
  y = y > kHigh ? kHigh : y;
  const float k = (y * 1.44269504088896341f + kRound) - kRound;
  const float r = (y - k * 0.693359375f) - k * -2.12194440e-4f;  // ln2 in two parts, the first exact in k * part
  const float p =
      polynomial(r, 1.0f / 5040.0f, 1.0f / 720.0f, 1.0f / 120.0f, 1.0f / 24.0f, 1.0f / 6.0f, 0.5f, 1.0f, 1.0f);
  const std::int32_t bits = (static_cast<std::int32_t>(k) + 127) << 23;
  float scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  return x < kLow ? 0.0f : p * scale;
}

LOCKSTEP_INLINE double vexp(double x) {
  constexpr double kLow = -708.39641853226408;
  constexpr double kHigh = 709.43613930310391;
  constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52; the sum's low bits are the integer itself
  double y = x < kLow ? kLow : x;
  y = y > kHigh ? kHigh : y;
  const double shifted = y * 1.4426950408889634074 + kRound;
  const double k = shifted - kRound;
  const double r = (y - k * 6.93147180369123816490e-01) - k * 1.90821492927058770002e-10;
  const double p =
      polynomial(r, 1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0, 1.0 / 362880.0,
                 1.0 / 40320.0, 1.0 / 5040.0, 1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0);
  std::int64_t bits;
  std::memcpy(&bits, &shifted, sizeof(bits));  // AVX2 cannot convert double to int64; the low bits already hold k
  bits = (bits + 1023) << 52;
  double scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  return x < kLow ? 0.0 : p * scale;
}

template <typename T>
LOCKSTEP_INLINE T row_max(const T* row, std::int64_t count) {
  T highest = row[0];
#pragma omp simd reduction(max : highest)
  for (std::int64_t c = 0; c < count; ++c) highest = row[c] > highest ? row[c] : highest;
  return highest;
}

// row[c] = exp(row[c] - highest); returns their sum.
template <typename T>
LOCKSTEP_INLINE T exponentiate(T* row, T highest, std::int64_t count) {
  T sum = 0;
#pragma omp simd reduction(+ : sum)
  for (std::int64_t c = 0; c < count; ++c) {
    const T e = vexp(row[c] - highest);
    row[c] = e;
    sum += e;
  }
  return sum;
}

LOCKSTEP_INLINE float vsigmoid(float x) { return 1.0f / (1.0f + vexp(-x)); }
LOCKSTEP_INLINE double vsigmoid(double x) { return 1.0 / (1.0 + vexp(-x)); }

}  // namespace lockstep::kernels
