#include "lockstep/kernels/cuda/arg_max.h"
#include "lockstep/kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 256;

// A row misses where any value is above the target's, or as large and before it: no index has to be carried along.
__global__ void __launch_bounds__(kThreads) arg_max_kernel(ArgMaxHits a) {
  const std::int64_t row = blockIdx.x;
  const std::int32_t target = a.targets[row];
  if (target < 0 || target >= a.classes) {
    if (threadIdx.x == 0) a.hits[row] = 0.0f;
    return;
  }
  const Bf16* const logits = a.logits + row * a.classes;
  const float mine = __bfloat162float(logits[target]);
  bool missed = false;
  for (std::int64_t i = threadIdx.x * kVector; i < a.classes; i += kThreads * kVector) {
    const Vector v = load(logits + i);
#pragma unroll
    for (int k = 0; k < kVector; ++k) missed |= v[k] > mine || (v[k] == mine && i + k < target);
  }
  missed = __syncthreads_or(missed);
  if (threadIdx.x == 0) a.hits[row] = missed ? 0.0f : 1.0f;
}

}  // namespace

void arg_max_hits(const ArgMaxHits& a, cudaStream_t stream) {
  require(a.classes % kVector == 0, "arg_max_hits", "classes must be a multiple of 8");
  if (a.rows == 0) return;
  arg_max_kernel<<<static_cast<unsigned>(a.rows), kThreads, 0, stream>>>(a);
  LOCKSTEP_CUDA_LAUNCHED();
}

}  // namespace lockstep::kernels::cuda
