#include <algorithm>

#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/cross_entropy.h"

namespace lockstep::kernels::cuda {
namespace {

constexpr int kThreads = 1024;
constexpr float kLog2e = 1.4426950408889634f;
constexpr float kSmallest = -2.0e38f;  // below every finite bf16 that matters; -infinity would make NaN of inf - inf

// Largest value and sum of exponentials relative to it, of a part of a row.
struct Partial {
  float largest, sum;
};
// Without the library function's care for denormal results, which round to 0 in these sums anyway.
__device__ float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ Partial merge(Partial a, Partial b) {
  const float largest = fmaxf(a.largest, b.largest);
  return {largest,
          a.sum * power_of_two((a.largest - largest) * kLog2e) + b.sum * power_of_two((b.largest - largest) * kLog2e)};
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
  return warp_merge(lane < static_cast<int>(blockDim.x) / kWarp ? slot[lane] : Partial{kSmallest, 0});
}
__device__ Partial add_vector(Partial p, const Vector& v) {
  float largest = p.largest;
#pragma unroll
  for (int i = 0; i < kVector; ++i) largest = fmaxf(largest, v[i]);
  const float shift = largest * kLog2e;
  float sum = p.sum * power_of_two(fmaf(p.largest, kLog2e, -shift));
#pragma unroll
  for (int i = 0; i < kVector; ++i) sum += power_of_two(fmaf(v[i], kLog2e, -shift));
  return {largest, sum};
}

struct RowResult {
  float shift;  // log2(e) * (largest + log(sum)): softmax = 2^(x * log2e - shift)
  float scale;
};
__device__ void write_gradient(Bf16* out, const Vector& v, const RowResult& r) {
  float f[kVector];
#pragma unroll
  for (int i = 0; i < kVector; ++i) f[i] = power_of_two(fmaf(v[i], kLog2e, -r.shift)) * r.scale;
  store(out, pack(f));
}
// The target's own gradient, written over by the thread that wrote its vector: the others compare nothing per element.
template <int kBlock>
__device__ void write_target(Bf16* row, std::int32_t target, float logit, const RowResult& r) {
  if (r.scale == 0.0f || (target / kVector) % kBlock != static_cast<int>(threadIdx.x)) return;
  row[target] = __float2bfloat16((power_of_two(fmaf(logit, kLog2e, -r.shift)) - 1.0f) * r.scale);
}
__device__ bool counts(std::int32_t target, std::int64_t classes) { return target >= 0 && target < classes; }

__device__ RowResult finish_row(const CrossEntropy& a, std::int64_t row, std::int32_t target, Partial p,
                                float target_logit, float scale) {
  const bool counted = counts(target, a.classes);
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
// One thread: the bulk copy engine brings a row into shared memory and signals the barrier.
__device__ inline void fetch_row(Bf16* stage, const Bf16* row, std::uint32_t bytes, std::uint64_t* barrier) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(stage)),
               "l"(row), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
}

// Rows stay in shared memory between the two looks at them, so logits are read once. Blocks walk over rows; with two
// stages the copy engine brings row n+1 while row n is worked on, with one the other blocks of the multiprocessor work
// meanwhile.
template <int kBlock, int kStages, int kUnroll>
__global__ void __launch_bounds__(kBlock) staged_kernel(CrossEntropy a) {
  extern __shared__ __align__(128) unsigned char memory[];
  __shared__ Partial slots[2][kWarp];
  __shared__ __align__(8) std::uint64_t barriers[kStages];
  const std::uint32_t bytes = static_cast<std::uint32_t>(a.classes) * sizeof(Bf16);
  const std::uint32_t stage_bytes = (bytes + 127) / 128 * 128;
  const auto stage_of = [&](unsigned i) { return reinterpret_cast<Bf16*>(memory + i * stage_bytes); };
  const auto fetch = [&](std::int64_t row, unsigned stage) {
    if (threadIdx.x == 0 && row < a.rows)
      fetch_row(stage_of(stage), a.logits + row * a.classes, bytes, &barriers[stage]);
  };
  const float scale = *a.gradient_scale;
  const int classes = static_cast<int>(a.classes);
  if (threadIdx.x == 0) {
    for (auto& barrier : barriers)
      asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  fetch(blockIdx.x, 0);
  unsigned turn = 0;
  for (std::int64_t row = blockIdx.x; row < a.rows; row += gridDim.x, ++turn) {
    const unsigned stage = turn % kStages;
    // Every thread passed the barrier at the end of the previous row, so the other stage is free.
    if (kStages == 2) fetch(row + gridDim.x, stage ^ 1);
    const std::int32_t target = a.targets[row];
    wait_for(&barriers[stage], (turn / kStages) % 2);
    const Bf16* const x = stage_of(stage);
    Partial p{kSmallest, 0};
#pragma unroll kUnroll
    for (int c = threadIdx.x * kVector; c < classes; c += kBlock * kVector) p = add_vector(p, load(x + c));
    p = block_merge(p, slots[turn % 2]);
    const float target_logit = counts(target, a.classes) ? __bfloat162float(x[target]) : 0.0f;
    const RowResult r = finish_row(a, row, target, p, target_logit, scale);
    Bf16* const out = a.logits + row * a.classes;
#pragma unroll kUnroll
    for (int c = threadIdx.x * kVector; c < classes; c += kBlock * kVector) write_gradient(out + c, load(x + c), r);
    write_target<kBlock>(out, target, target_logit, r);
    __syncthreads();
    if (kStages == 1) fetch(row + gridDim.x, 0);
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
  p = block_merge(p, slots);  // its barrier also separates the reading of target_logit from the writing below
  const RowResult r = finish_row(a, row, target, p, target_logit, *a.gradient_scale);
  for (std::int64_t c = threadIdx.x * kVector; c < a.classes; c += kThreads * kVector)
    write_gradient(x + c, load(x + c), r);
  write_target<kThreads>(x, target, target_logit, r);
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
  const auto run = [&]<int kBlock, int kStages, int kUnroll>() {
    const auto kernel = staged_kernel<kBlock, kStages, kUnroll>;
    const std::int64_t bytes = kStages * stage;
    LOCKSTEP_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)));
    const std::int64_t together = std::min<std::int64_t>((limit + 1024) / (bytes + used_beside + 1024), 2048 / kBlock);
    const std::int64_t blocks = std::min<std::int64_t>(a.rows, multiprocessors() * std::max<std::int64_t>(1, together));
    kernel<<<static_cast<unsigned>(blocks), kBlock, bytes, stream>>>(a);
  };
  if (2 * stage + used_beside <= limit) {
    run.template operator()<512, 1, 1>();
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
