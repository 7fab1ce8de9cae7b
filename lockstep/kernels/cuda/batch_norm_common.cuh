// How the kernels of batch normalisation walk over an image tensor and sum over its rows.
#pragma once

#include <algorithm>

#include "lockstep/kernels/cuda/batch_norm.h"
#include "lockstep/kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {

constexpr int kNormThreads = 512;
constexpr int kNormWarps = kNormThreads / kWarp;
constexpr int kNormBlocksPerMultiprocessor = 2;  // of 512 threads and at most 64 registers each
constexpr int kRowsInFlight = 4;
constexpr int kLanes = 8;  // vectors of a tile: a line of 128 bytes

// A block covers 64 channels and 64 rows at a time: a thread stays with its
// channels and walks over rows.
struct NormTile {
  static constexpr int kRows = kNormThreads / kLanes;
  static constexpr int kChannels = kLanes * kVector;

  __device__ static int lane() { return threadIdx.x % kLanes; }
  __device__ static std::int64_t channel() {
    return (static_cast<std::int64_t>(blockIdx.x) * kLanes + lane()) * kVector;
  }
  __device__ static std::int64_t first_row() {
    return static_cast<std::int64_t>(blockIdx.y) * kRows + threadIdx.x / kLanes;
  }
  __device__ static std::int64_t stride() { return static_cast<std::int64_t>(gridDim.y) * kRows; }
};

// Blocks side by side and, in y, over rows: one wave of the device.
inline dim3 norm_grid(std::int64_t rows, std::int64_t channels) {
  const std::int64_t across = ceil_div(channels, kLanes * kVector);
  const std::int64_t wave = ceil_div(kNormBlocksPerMultiprocessor * multiprocessors(), across);
  const std::int64_t needed = ceil_div(rows, kNormThreads / kLanes);
  return dim3(static_cast<unsigned>(across), static_cast<unsigned>(std::max<std::int64_t>(1, std::min(wave, needed))));
}

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
