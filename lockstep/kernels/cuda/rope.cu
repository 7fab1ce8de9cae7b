#include <cmath>
#include <vector>

#include "lockstep/kernels/cuda/rope.h"
#include "lockstep/kernels/cuda/rope_math.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kHeadsPerThread = 4;  // share one reading of the tables, and keep eight loads in flight

// Which token, pair of vectors and group of heads a thread has: one pair (i, i + dim/2) of kHeadsPerThread heads.
struct Task {
  unsigned token, group, pair;
};
__device__ Task task_of(unsigned pairs, unsigned groups) {
  const unsigned index = blockIdx.x * kThreads + threadIdx.x;
  const unsigned token = index / (pairs * groups), rest = index - token * pairs * groups;
  return {token, rest / pairs, rest % pairs};
}

__global__ void __launch_bounds__(kThreads) rope_kernel(Rope a, unsigned pairs, unsigned groups) {
  const Task task = task_of(pairs, groups);
  if (task.token >= a.tokens) return;
  const int half = static_cast<int>(a.dim / 2), column = static_cast<int>(task.pair) * kVector;
  Bf16* const base = a.x + task.token * a.heads * a.dim + column;
  Vector first[kHeadsPerThread], second[kHeadsPerThread];
#pragma unroll
  for (int k = 0; k < kHeadsPerThread; ++k) {
    const unsigned head = task.group + k * groups;
    if (head >= a.rotated) continue;
    first[k] = load(base + head * a.dim);
    second[k] = load(base + head * a.dim + half);
  }
  const Angles angles =
      load_angles(a.cos, a.sin, static_cast<std::int64_t>(task.token % static_cast<unsigned>(a.seq)) * half + column);
#pragma unroll
  for (int k = 0; k < kHeadsPerThread; ++k) {
    const unsigned head = task.group + k * groups;
    if (head >= a.rotated) continue;
    float f[kVector], s[kVector];
    turn(first[k], second[k], angles, a.inverse ? -1.0f : 1.0f, f, s);
    store(base + head * a.dim, pack(f));
    store(base + head * a.dim + half, pack(s));
  }
}

// Where the gradient of packed head `head` of a token begins.
__device__ const Bf16* source_of(const RopeBackward& a, unsigned token, unsigned head) {
  if (head < a.heads) return a.dq + (token * a.heads + head) * a.dim;
  const std::int64_t kv = head - a.heads;
  return kv < a.kv_heads ? a.dk + (token * a.kv_heads + kv) * a.dim
                         : a.dv + (token * a.kv_heads + kv - a.kv_heads) * a.dim;
}

template <Extra kExtra>
__global__ void __launch_bounds__(kThreads) backward_kernel(RopeBackward a, unsigned pairs, unsigned groups) {
  const Task task = task_of(pairs, groups);
  float largest = 0;
  if (task.token < a.tokens) {
    const int half = static_cast<int>(a.dim / 2), column = static_cast<int>(task.pair) * kVector;
    const std::int64_t heads = a.heads + 2 * a.kv_heads, turned = a.heads + a.kv_heads;
    Vector first[kHeadsPerThread], second[kHeadsPerThread];
#pragma unroll
    for (int k = 0; k < kHeadsPerThread; ++k) {
      const unsigned head = task.group + k * groups;
      if (head >= heads) continue;
      const Bf16* const source = source_of(a, task.token, head) + column;
      first[k] = load_once(source);
      second[k] = load_once(source + half);
    }
    const Angles angles =
        load_angles(a.cos, a.sin, static_cast<std::int64_t>(task.token % static_cast<unsigned>(a.seq)) * half + column);
#pragma unroll
    for (int k = 0; k < kHeadsPerThread; ++k) {
      const unsigned head = task.group + k * groups;
      if (head >= heads) continue;
      float f[kVector], s[kVector];
      if (head < turned) {
        turn(first[k], second[k], angles, -1.0f, f, s);
      } else {
        unpack(first[k], f);
        unpack(second[k], s);
      }
      const std::int64_t place = (task.token * heads + head) * a.dim + column;
      store(a.packed + place, pack(f));
      store(a.packed + place + half, pack(s));
      if (kExtra == Extra::kNone) continue;
      const float scale = *a.packed8.scale;
      largest = fmaxf(largest, store_fp8<kFormatOf<kExtra>>(a.packed8.data + place, f, scale));
      largest = fmaxf(largest, store_fp8<kFormatOf<kExtra>>(a.packed8.data + place + half, s, scale));
    }
  }
  if (kExtra != Extra::kNone) raise_amax_of_warp(a.packed8.amax, largest);
}

struct Grid {
  unsigned pairs, groups, blocks;
};
Grid grid_for(std::int64_t tokens, std::int64_t heads, std::int64_t dim) {
  require(dim > 0 && dim % (2 * kVector) == 0, "rope", "the head dimension must be a multiple of 16");
  const std::int64_t pairs = dim / (2 * kVector), groups = ceil_div(heads, kHeadsPerThread);
  require(tokens * pairs * groups < kIndexLimit, "rope", "too many elements for one launch");
  return {static_cast<unsigned>(pairs), static_cast<unsigned>(groups),
          static_cast<unsigned>(ceil_div(tokens * pairs * groups, kThreads))};
}

}  // namespace

void rope(const Rope& a, cudaStream_t stream) {
  require(a.rotated <= a.heads && a.seq > 0, "rope", "more heads are rotated than there are");
  if (a.tokens == 0 || a.rotated == 0) return;
  const Grid grid = grid_for(a.tokens, a.rotated, a.dim);
  rope_kernel<<<grid.blocks, kThreads, 0, stream>>>(a, grid.pairs, grid.groups);
  LOCKSTEP_CUDA_LAUNCHED();
}

void rope_backward(const RopeBackward& a, cudaStream_t stream) {
  if (a.tokens == 0) return;
  const Grid grid = grid_for(a.tokens, a.heads + 2 * a.kv_heads, a.dim);
  with_extra(a.packed8, [&]<Extra kExtra>() {
    backward_kernel<kExtra><<<grid.blocks, kThreads, 0, stream>>>(a, grid.pairs, grid.groups);
  });
  LOCKSTEP_CUDA_LAUNCHED();
}

std::vector<float> rope_frequencies(std::int64_t dim, double theta) {
  std::vector<float> frequencies(dim / 2);
  for (std::int64_t i = 0; i < dim / 2; ++i)
    frequencies[i] = static_cast<float>(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim)));
  return frequencies;
}

void rope_tables(float* cos, float* sin, std::int64_t seq, const std::vector<float>& frequencies, cudaStream_t stream) {
  const auto half = static_cast<std::int64_t>(frequencies.size());
  std::vector<float> c(seq * half), s(seq * half);
  for (std::int64_t i = 0; i < half; ++i) {
    for (std::int64_t t = 0; t < seq; ++t) {
      const float angle = static_cast<float>(t) * frequencies[i];  // exact from here
      c[t * half + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      s[t * half + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  LOCKSTEP_CUDA(cudaMemcpyAsync(cos, c.data(), c.size() * sizeof(float), cudaMemcpyHostToDevice, stream));
  LOCKSTEP_CUDA(cudaMemcpyAsync(sin, s.data(), s.size() * sizeof(float), cudaMemcpyHostToDevice, stream));
  LOCKSTEP_CUDA(cudaStreamSynchronize(stream));
}

}  // namespace lockstep::kernels::cuda
