// Dropout multipliers of eight neighbouring elements.
#pragma once

#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/dropout.h"

namespace lockstep::kernels::cuda {

__device__ inline uint4 philox(uint4 counter, std::uint32_t key0, std::uint32_t key1) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint32_t high0 = __umulhi(0xD2511F53u, counter.x), low0 = 0xD2511F53u * counter.x;
    const std::uint32_t high1 = __umulhi(0xCD9E8D57u, counter.z), low1 = 0xCD9E8D57u * counter.z;
    counter = make_uint4(high1 ^ counter.y ^ key0, low1, high0 ^ counter.w ^ key1, low0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return counter;
}

// Where a row of a mask begins.
struct MaskRow {
  std::uint32_t sample = 0;
  std::uint64_t first = 0;  // element of the sample
};
__device__ inline MaskRow mask_row(const DropoutMask& mask, std::int64_t row, std::int64_t cols) {
  const auto sample = static_cast<std::uint32_t>(static_cast<std::uint64_t>(row) / mask.rows_per_sample);
  const std::int64_t inside = row - static_cast<std::int64_t>(sample) * mask.rows_per_sample;
  const std::int64_t place = mask.positions != nullptr ? mask.positions[inside] : inside;
  return {mask.first_index + sample, static_cast<std::uint64_t>(place * cols)};
}

// Bit i: element column + i of the row is kept.
__device__ inline std::uint8_t kept_bits(const DropoutMask& mask, const MaskRow& row, std::int64_t column) {
  const auto block = static_cast<std::uint32_t>((row.first + column) / 4);
  unsigned bits = 0;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 w = philox(make_uint4(block + half, row.sample, mask.layer, mask.step), mask.key[0], mask.key[1]);
    bits |= ((w.x >= mask.threshold ? 1u : 0u) | (w.y >= mask.threshold ? 2u : 0u) | (w.z >= mask.threshold ? 4u : 0u) |
             (w.w >= mask.threshold ? 8u : 0u))
            << (4 * half);
  }
  return static_cast<std::uint8_t>(bits);
}
__device__ inline void apply_bits(unsigned bits, float kept, float (&f)[kVector]) {
#pragma unroll
  for (int i = 0; i < kVector; ++i) f[i] = bits >> i & 1u ? f[i] * kept : 0.0f;
}

// f *= multipliers of elements [column, column + 8) of the row; the row begins at a multiple of 8.
__device__ inline void apply_mask(const DropoutMask& mask, const MaskRow& row, std::int64_t column,
                                  float (&f)[kVector]) {
  if (mask.threshold != 0) apply_bits(kept_bits(mask, row, column), mask.kept, f);
}

}  // namespace lockstep::kernels::cuda
