// How the kernels of batch normalisation walk over an image tensor and sum over its rows.
#pragma once

#include <algorithm>

#include "lockstep/kernels/cuda/batch_norm.h"
#include "lockstep/kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {

constexpr int kNormThreads = 512;
constexpr int kNormWarps = kNormThreads / kWarp;
constexpr int kLanes = 8;  // vectors of a tile: a line of 128 bytes
// Blocks of a multiprocessor: two with 64 registers per thread, one with 128.
constexpr int kSlim = 2, kWide = 1;

// A block covers 64 channels and 64 rows at a time: a thread stays with its channels and walks over rows.
struct NormTile {
  static constexpr int kRows = kNormThreads / kLanes;
  static constexpr int kChannels = kLanes * kVector;

  __device__ static int lane() { return threadIdx.x % kLanes; }
  __device__ static std::int64_t channel() {
    return (static_cast<std::int64_t>(blockIdx.x) * kLanes + lane()) * kVector;
  }
};

// Blocks in y: one wave of the device and not one block more, which would take as long as all others.
inline std::int64_t norm_wave(std::int64_t channels, int per_multiprocessor) {
  const std::int64_t across = ceil_div(channels, NormTile::kChannels);
  return std::max<std::int64_t>(1, per_multiprocessor * multiprocessors() / across);
}
inline dim3 norm_grid(std::int64_t rows, std::int64_t channels, int per_multiprocessor) {
  const std::int64_t needed = ceil_div(rows, NormTile::kRows);
  return dim3(static_cast<unsigned>(ceil_div(channels, NormTile::kChannels)),
              static_cast<unsigned>(std::min(norm_wave(channels, per_multiprocessor), needed)));
}

enum class From { kFront, kEnd };

// This thread's rows: of kAhead of them fetch(k, place) is called first, then use(k, place), so that kAhead loads are
// on their way together. Blocks go side by side through the tensor, in chunks of kAhead * 64 rows that lie together.
// Places count vectors: 32 bits of them are enough, and cost fewer registers.
template <int kAhead, From kFrom, class Fetch, class Use>
__device__ void walk_rows(std::int64_t rows, std::int64_t channels, Fetch fetch, Use use) {
  constexpr unsigned kChunk = kAhead * NormTile::kRows;
  const unsigned end = static_cast<unsigned>(rows), chunks = (end + kChunk - 1) / kChunk;
  const unsigned vectors = static_cast<unsigned>(channels) / kVector, own = blockIdx.x * kLanes + NormTile::lane();
  for (unsigned i = blockIdx.y; i < chunks; i += gridDim.y) {
    const unsigned first = (kFrom == From::kEnd ? chunks - 1 - i : i) * kChunk + threadIdx.x / kLanes;
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (first + k * NormTile::kRows < end) fetch(k, (first + k * NormTile::kRows) * vectors + own);
#pragma unroll
    for (int k = 0; k < kAhead; ++k)
      if (first + k * NormTile::kRows < end) use(k, (first + k * NormTile::kRows) * vectors + own);
  }
}

// The place of vector `place` among the pixels of even rows and columns; kOdd: it is not one of them.
constexpr unsigned kOdd = 0xffffffffu;
__device__ inline unsigned even_place(unsigned place, unsigned vectors, unsigned width) {
  const unsigned pixel = place / vectors, line = pixel / width, column = pixel % width;
  if ((line | column) & 1u) return kOdd;
  return (line / 2 * (width / 2) + column / 2) * vectors + place % vectors;  // images have an even number of lines
}

// Vector number `place` of a tensor.
__device__ inline const Bf16* vector_at(const Bf16* x, unsigned place) {
  return x + static_cast<std::int64_t>(place) * kVector;
}
__device__ inline Bf16* vector_at(Bf16* x, unsigned place) { return x + static_cast<std::int64_t>(place) * kVector; }

// Eight channels' affine form of a layer: normalised = x * scale + shift.
struct Affine {
  float scale[kVector], shift[kVector];
};
__device__ inline Affine affine_of(const BatchNormLayer& layer, std::int64_t channel) {
  Affine a;
  const Vector weight = load(layer.weight + channel), bias = load(layer.bias + channel);
  float mean[kVector], rstd[kVector];
  load_floats(layer.mean + channel, mean);
  load_floats(layer.rstd + channel, rstd);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    a.scale[i] = weight[i] * rstd[i];
    a.shift[i] = bias[i] - mean[i] * a.scale[i];
  }
  return a;
}

// Eight channels of dx = scale (g - mean_g - (x - mean) rstd mean_gx) as scale g - (offset + slope x).
struct Slopes {
  float scale[kVector], offset[kVector], slope[kVector];

  __device__ float operator()(int i, float g, float x) const {
    return fmaf(scale[i], g, -fmaf(slope[i], x, offset[i]));
  }
};
__device__ inline Slopes slopes_of(const BatchNormLayer& layer, const BatchNormGradients& gradients,
                                   std::int64_t channel) {
  Slopes s;
  const Vector weight = load(layer.weight + channel);
  float mean[kVector], rstd[kVector], mean_g[kVector], mean_gx[kVector];
  load_floats(layer.mean + channel, mean);
  load_floats(layer.rstd + channel, rstd);
  load_floats(gradients.mean_g + channel, mean_g);
  load_floats(gradients.mean_gx + channel, mean_gx);
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    s.scale[i] = weight[i] * rstd[i];
    s.slope[i] = s.scale[i] * rstd[i] * mean_gx[i];
    s.offset[i] = s.scale[i] * mean_g[i] - s.slope[i] * mean[i];
  }
  return s;
}

// Sums over the block's rows, then over all blocks of these channels: every block leaves its part in `scratch`, and the
// last one to come adds the parts in order and calls finish(channel, totals) once per channel.
template <int kSums, class Finish>
__device__ void sum_over_rows(float (&sums)[kSums][kVector], const BatchNormScratch& scratch, std::int64_t channels,
                              Finish finish) {
  using Tile = NormTile;
  constexpr int kValues = kSums * Tile::kChannels;  // of a block
  __shared__ __align__(16) float parts[kNormWarps][kValues];
  __shared__ bool last;
  const int warp = threadIdx.x / kWarp;
#pragma unroll
  for (int s = 0; s < kSums; ++s) {
#pragma unroll
    for (int i = 0; i < kVector; ++i) {
#pragma unroll
      for (int offset = kLanes; offset < kWarp; offset *= 2)
        sums[s][i] += __shfl_xor_sync(0xffffffffu, sums[s][i], offset);
      if (threadIdx.x % kWarp < kLanes) parts[warp][s * Tile::kChannels + Tile::lane() * kVector + i] = sums[s][i];
    }
  }
  __syncthreads();
  // A tile's parts lie together: [tile][block][value].
  float* const mine = scratch.sums + (static_cast<std::int64_t>(blockIdx.x) * gridDim.y) * kValues;
  for (int v = threadIdx.x; v < kValues; v += kNormThreads) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < kNormWarps; ++w) total += parts[w][v];
    mine[static_cast<std::int64_t>(blockIdx.y) * kValues + v] = total;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(scratch.tickets + blockIdx.x, 1u) == gridDim.y - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();
  // Groups of threads add every kGroups-th part, four values each; then the groups' sums are added.
  constexpr int kQuads = kValues / 4, kGroups = kNormThreads / kQuads;
  const int quad = threadIdx.x % kQuads, group = threadIdx.x / kQuads;
  float4 total = make_float4(0, 0, 0, 0);
  if (group < kGroups) {
#pragma unroll 4
    for (unsigned part = group; part < gridDim.y; part += kGroups) {
      const float4 v = __ldcg(reinterpret_cast<const float4*>(mine + static_cast<std::int64_t>(part) * kValues) + quad);
      total.x += v.x, total.y += v.y, total.z += v.z, total.w += v.w;
    }
    *reinterpret_cast<float4*>(&parts[group][quad * 4]) = total;
  }
  __syncthreads();
  for (int c = threadIdx.x; c < Tile::kChannels; c += kNormThreads) {
    const std::int64_t channel = static_cast<std::int64_t>(blockIdx.x) * Tile::kChannels + c;
    if (channel >= channels) continue;
    float totals[kSums];
#pragma unroll
    for (int s = 0; s < kSums; ++s) {
      totals[s] = 0;
      for (int g = 0; g < kGroups; ++g) totals[s] += parts[g][s * Tile::kChannels + c];
    }
    finish(channel, totals);
  }
  if (threadIdx.x == 0) scratch.tickets[blockIdx.x] = 0;
}

// Throws std::invalid_argument for sizes that the kernels do not take.
void check_batch_norm(std::int64_t rows, std::int64_t channels);

}  // namespace lockstep::kernels::cuda
