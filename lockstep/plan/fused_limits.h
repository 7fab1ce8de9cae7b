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
inline constexpr std::int64_t kLossChunkUnit = 16;             // rows of a chunk are a multiple of it
inline constexpr std::int64_t kGemmWorkspaceBytes = 64LL << 20;

// Products of our own (kernels/cuda/hopper): a block's tile, and blocks that share the reading of a column's tile. The
// two halves of a pair of columns are one tile.
inline constexpr int kTileRows = 128, kTileColumns = 256, kTileInner = 64, kTileCluster = 2;

// Norm's backward: blocks that are resident together, each with a row of partial sums, and its vectors.
inline constexpr int kNormBackwardThreads = 1024;  // per multiprocessor, as their registers allow
inline constexpr int kNormVector = 8, kWarpThreads = 32;
inline constexpr int kMultiprocessors = 132;  // of H100 and H200; the kernels ask their device

}  // namespace lockstep::plan::fused
