// Limits and sizes of the fused one-GPU step: kernels, engine and cost include this one header. Constants only, so that
// CUDA sources can include it too.
#pragma once

#include <cstdint>

namespace lockstep::plan::fused {

inline constexpr std::int64_t kSizeUnit = 16;      // widths and rows are multiples of it
inline constexpr std::int64_t kSizeUnitFp8 = 64;   // the same where products are in 8 bits
inline constexpr std::int64_t kLargestHead = 128;  // head dimension
inline constexpr std::int64_t kLargestHidden = 8192;
inline constexpr std::int64_t kLossChunkBytes = 3200LL << 20;  // of logits held at a time

}  // namespace lockstep::plan::fused
