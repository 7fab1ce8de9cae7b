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

LOCKSTEP_INLINE float vexp(float x) {
  constexpr float kLow = -87.33654f;
  constexpr float kHigh = 88.37626f;
  constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  float y = x < kLow ? kLow : x;
  y = y > kHigh ? kHigh : y;
  const float k = (y * 1.44269504088896341f + kRound) - kRound;
  const float r = (y - k * 0.693359375f) - k * -2.12194440e-4f;  // ln2 in two parts, the first exact in k * part
  float p = 1.0f / 5040.0f;
  p = p * r + 1.0f / 720.0f;
  p = p * r + 1.0f / 120.0f;
  p = p * r + 1.0f / 24.0f;
  p = p * r + 1.0f / 6.0f;
  p = p * r + 0.5f;
  p = p * r + 1.0f;
  p = p * r + 1.0f;
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
  double p = 1.0 / 6227020800.0;
  p = p * r + 1.0 / 479001600.0;
  p = p * r + 1.0 / 39916800.0;
  p = p * r + 1.0 / 3628800.0;
  p = p * r + 1.0 / 362880.0;
  p = p * r + 1.0 / 40320.0;
  p = p * r + 1.0 / 5040.0;
  p = p * r + 1.0 / 720.0;
  p = p * r + 1.0 / 120.0;
  p = p * r + 1.0 / 24.0;
  p = p * r + 1.0 / 6.0;
  p = p * r + 0.5;
  p = p * r + 1.0;
  p = p * r + 1.0;
  std::int64_t bits;
  std::memcpy(&bits, &shifted, sizeof(bits));  // AVX2 cannot convert double to int64; the low bits already hold k
  bits = (bits + 1023) << 52;
  double scale;
  std::memcpy(&scale, &bits, sizeof(scale));
  return x < kLow ? 0.0 : p * scale;
}

LOCKSTEP_INLINE float vsigmoid(float x) { return 1.0f / (1.0f + vexp(-x)); }
LOCKSTEP_INLINE double vsigmoid(double x) { return 1.0 / (1.0 + vexp(-x)); }

}  // namespace lockstep::kernels
