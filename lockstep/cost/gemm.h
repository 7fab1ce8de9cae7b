// Matrix products, attention and streaming kernels on one device. Pure functions.
#pragma once

#include "lockstep/base/units.h"
#include "lockstep/cost/profile/constants.h"
#include "lockstep/spec/cluster.h"

namespace lockstep::cost {

// What a device reaches, after the profile.
struct DeviceRates {
  FlopsPerSecond gemm;       // large products in the layout's precision
  FlopsPerSecond attention;  // fused attention at long sequences
  FlopsPerSecond vector;     // fp32 without tensor cores
  BytesPerSecond memory;     // streaming
  double m_half = 0, n_half = 0, k_half = 0;
  double attention_half = 0;
};

// Of the device's datasheet in that precision; attention is never in 8 bits.
DeviceRates rates_of(const spec::Device& device, spec::Precision precision, const Constants& constants);

// Streaming kernels reach about this share of the datasheet's memory bandwidth (STREAM-like copies on A100 and H100).
inline constexpr double kStreamEfficiency = 0.82;

// Y[m,n] = X[m,k] W: the rate falls with each dimension that is short. Hockney's half-performance length (Hockney 1984,
// "(r_inf, n_half, s_half) measurements") in all three: tiles at the edge of m and n, pipeline fill along k.
inline Seconds gemm_seconds(const DeviceRates& rates, double m, double n, double k) {
  const Flops flops(2 * m * n * k);
  const double shape = (1 + rates.m_half / m) * (1 + rates.n_half / n) * (1 + rates.k_half / k);
  return flops / rates.gemm * shape;
}

// Fused attention (Dao et al. 2022): 4 x tokens x keys x width FLOPs forward, keys = half the sequence when causal.
// Short sequences fill few tiles; head_dim 64 runs at five sixths of 128 (Dao 2023, figure 5).
inline Seconds fused_attention_seconds(const DeviceRates& rates, double tokens, double keys, double width,
                                       double sequence, double head_dim) {
  const Flops flops(4 * tokens * keys * width);
  const double head = (head_dim + 32) / head_dim * (128.0 / (128.0 + 32));
  return flops / rates.attention * ((1 + rates.attention_half / sequence) * head);
}

inline Seconds stream_seconds(const DeviceRates& rates, Bytes traffic) { return traffic / rates.memory; }

}  // namespace lockstep::cost
