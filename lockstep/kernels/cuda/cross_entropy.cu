#include <algorithm>

#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/cross_entropy.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kSmallest = -3.0e38f;  // below every finite bf16 that matters; -infinity would make NaN of inf - inf

// Largest value and sum of exponentials relative to it, of a part of a row.
struct Partial {
  float largest, sum;
};
__device__ Partial merge(Partial a, Partial b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest, a.sum * exp2f((a.largest - largest) * kLog2e) + b.sum * exp2f((b.largest - largest) * kLog2e)};
}
__device__ Partial warp_merge(Partial p) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2)
    p = merge(p, {__shfl_xor_sync(0xffffffffu, p.largest, offset), __shfl_xor_sync(0xffffffffu, p.sum, offset)});
  return p;
}
__device__ Partial block_merge(Partial p, Partial* slot) {
  p = warp_merge(p);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (lane == 0) slot[warp] = p;
  __syncthreads();
  return warp_merge(slot[lane]);  // 32 warps
}
__device__ Partial add_vector(Partial p, const Vector& v) {
  float largest = p.largest;
#pragma unroll
  for (int i = 0; i < kVector; ++i) largest = fmaxf(largest, v[i]);
  float sum = p.sum * exp2f((p.largest - largest) * kLog2e);
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum += exp2f((v[i] - largest) * kLog2e);
  return {largest, sum};
}

struct RowResult {
  float shift;  // log2(e) * (largest + log(sum)): softmax = 2^(x * log2e - shift)
  float scale;
};
__device__ void write_gradient(Bf16* out, const Vector& v, const RowResult& r, std::int64_t column,
                               std::int64_t target) {
  float f[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) {
    f[i] = exp2f(v[i] * kLog2e - r.shift) * r.scale;
    if (column + i == target) f[i] -= r.scale;
  }
  store(out, pack(f));
}
__device__ bool counts(std::int32_t target, std::int64_t classes) { return target >= 0 && target < classes; }

__device__ RowResult finish_row(const CrossEntropy& a, std::int64_t row, Partial p, float target_logit, float scale) {
  const bool counted = counts(a.targets[row], a.classes);
  if (threadIdx.x == 0) a.losses[row] = counted ? logf(p.sum) + p.largest - target_logit : 0.0f;
  return {p.largest * kLog2e + log2f(p.sum), counted ? scale : 0.0f};
}

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}
__device__ inline void wait_for(std::uint64_t* barrier, unsigned phase) {
  asm volatile(
      "{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra finished;\nbra again;\nfinished:\n}\n" ::"r"(shared_address(barrier)),
      "r"(phase)
      : "memory");
}
// One thread: the bulk copy engine brings a row into shared memory and tells the barrier.
__device__ inline void fetch_row(Bf16* stage, const Bf16* row, std::uint32_t bytes, std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(stage)),
               "l"(row), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Rows stay in shared memory between the two looks at them, so logits are read once. A block per multiprocessor walks
// over rows, two stages deep: the copy engine brings row n+1 while row n is worked on.
__global__ void __launch_bounds__(kThreads, 1) staged_kernel(CrossEntropy a) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ Partial slots[2][kWarp];
  __shared__ __align__(8) std::uint64_t barriers[2];
  const std::uint32_t bytes = static_cast<std::uint32_t>(a.classes) * sizeof(Bf16);
  const std::uint32_t stage_bytes = (bytes + 127) / 128 * 128;
  const auto stage_of = [&](unsigned i) { return reinterpret_cast<Bf16*>(memory + i * stage_bytes); };
  const float scale = *a.gradient_scale;
  if (threadIdx.x == 0) {
    for (auto& barrier : barriers)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    if (blockIdx.x < a.rows) fetch_row(stage_of(0), a.logits + blockIdx.x * a.classes, bytes, &barriers[0]);
  }
  __syncthreads();
  unsigned turn = 0;
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, ++turn) {
    const unsigned stage = turn % 2;
    // Every thread passed the barrier of the previous row's end, so the other stage is free.
    if (threadIdx.x == 0 && row + gridDim.x < a.rows)
      fetch_row(stage_of(stage ^ 1), a.logits + (row + gridDim.x) * a.classes, bytes, &barriers[stage ^ 1]);
    wait_for(&barriers[stage], (turn / 2) % 2);
    const Bf16* const x = stage_of(stage);
    Partial p{kSmallest, 0};
    for (std::int64_t c = threadIdx.x * kVector; c < a.classes; c += kThreads * kVector) p = add_vector(p, load(x + c));
    p = block_merge(p, slots[stage]);
    const std::int32_t target = a.targets[row];
    const RowResult r = finish_row(a, row, p, counts(target, a.classes) ? __bfloat162float(x[target]) : 0.0f, scale);
    Bf16* const out = a.logits + row * a.classes;
    for (std::int64_t c = threadIdx.x * kVector; c < a.classes; c += kThreads * kVector)
      write_gradient(out + c, load(x + c), r, c, target);
    __syncthreads();
  }
}

// Any number of classes: reads the logits twice.
__global__ void __launch_bounds__(kThreads) plain_kernel(CrossEntropy a) {
  __shared__ Partial slots[kWarp];
  const std::int64_t row = blockIdx.x;
  Bf16* const x = a.logits + row * a.classes;
  Partial p{kSmallest, 0};
  for (std::int64_t c = threadIdx.x * kVector; c < a.classes; c += kThreads * kVector) p = add_vector(p, load(x + c));
  const std::int32_t target = a.targets[row];
  const float target_logit = counts(target, a.classes) ? __bfloat162float(x[target]) : 0.0f;
  p = block_merge(p, slots);  // its barrier also stands between the reading of target_logit and the writing below
  const RowResult r = finish_row(a, row, p, target_logit, *a.gradient_scale);
  for (std::int64_t c = threadIdx.x * kVector; c < a.classes; c += kThreads * kVector)
    write_gradient(x + c, load(x + c), r, c, target);
}

__device__ float block_total(float value) {
  __shared__ float slot[kWarp];
  return block_sum(value, slot);
}
__global__ void __launch_bounds__(kThreads)
    count_kernel(const std::int32_t* targets, std::int64_t rows, std::int64_t classes, float divisor, float* scale) {
  float count = 0;
  for (std::int64_t i = threadIdx.x; i < rows; i += kThreads) count += counts(targets[i], classes) ? 1.0f : 0.0f;
  count = block_total(count);
  if (threadIdx.x == 0) *scale = count > 0 ? 1.0f / (count * divisor) : 0.0f;
}
__global__ void __launch_bounds__(kThreads)
    reduce_kernel(const float* losses, std::int64_t rows, const float* scale, float* loss, bool accumulate) {
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < rows; i += kThreads) sum += losses[i];
  sum = block_total(sum) * *scale;
  if (threadIdx.x == 0) *loss = accumulate ? *loss + sum : sum;
}

}  // namespace

void cross_entropy(const CrossEntropy& a, cudaStream_t stream) {
  require(a.classes > 0 && a.classes % kVector == 0, "cross_entropy", "classes must be a multiple of 8");
  if (a.rows == 0) return;
  int device = 0, limit = 0;
  LOCKSTEP_CUDA(cudaGetDevice(&device));
  LOCKSTEP_CUDA(cudaDeviceGetAttribute(&limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  const std::int64_t stage = (a.classes * static_cast<std::int64_t>(sizeof(Bf16)) + 127) / 128 * 128;
  const std::int64_t used_beside = 1024;  // slots and barriers
  if (2 * stage + used_beside <= limit) {
    LOCKSTEP_CUDA(
        cudaFuncSetAttribute(staged_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(2 * stage)));
    const int blocks = static_cast<int>(std::min<std::int64_t>(a.rows, multiprocessors()));
    staged_kernel<<<blocks, kThreads, 2 * stage, stream>>>(a);
  } else {
    plain_kernel<<<static_cast<unsigned>(a.rows), kThreads, 0, stream>>>(a);
  }
  LOCKSTEP_CUDA_LAUNCHED();
}

void count_targets(const std::int32_t* targets, std::int64_t rows, std::int64_t classes, float divisor,
                   float* gradient_scale, cudaStream_t stream) {
  count_kernel<<<1, kThreads, 0, stream>>>(targets, rows, classes, divisor, gradient_scale);
  LOCKSTEP_CUDA_LAUNCHED();
}

void reduce_losses(const float* losses, std::int64_t rows, const float* gradient_scale, float* loss, bool accumulate,
                   cudaStream_t stream) {
  reduce_kernel<<<1, kThreads, 0, stream>>>(losses, rows, gradient_scale, loss, accumulate);
  LOCKSTEP_CUDA_LAUNCHED();
}

}  // namespace lockstep::kernels::cuda
