// The tensor cores' asynchronous product of a warpgroup: 64x256 of fp32 in registers, bf16 operands in shared memory
// that the TMA wrote with its 128-byte swizzle. For sm_90a only.
#pragma once

#include <cstdint>

namespace lockstep::kernels::cuda::hopper {

// How an operand's tile lies in shared memory: rows of 64 elements of k (128 bytes), or, per 64 rows of the operand,
// one box whose lines are 64 of these rows at one k.
enum class Major { kK, kRows };

constexpr int kBoxBytes = 64 * 64 * 2;  // of Major::kRows

// The descriptor of a tile at `address` (a multiple of 1024 bytes). Bits: 0-13 address, 16-29 leading offset (between
// boxes of 64 rows; unused when k is contiguous), 32-45 stride offset (between groups of 8 lines), 62-63 the swizzle;
// offsets in units of 16 bytes.
template <Major kMajor>
__device__ inline std::uint64_t descriptor(std::uint32_t address) {
  constexpr std::uint64_t leading = kMajor == Major::kK ? 1 : kBoxBytes / 16, stride = 8 * 128 / 16, swizzle128 = 1;
  return (swizzle128 << 62) | (stride << 32) | (leading << 16) | ((address & 0x3ffff) >> 4);
}
// What 16 more of k add to a descriptor.
template <Major kMajor>
constexpr std::uint64_t kNextK = (kMajor == Major::kK ? 16 * 2 : 16 * 128) / 16;

// Before the first product that touches the accumulators, after ordinary code did.
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
// Closes a group of products; wgmma_wait<n> returns once at most n groups are still at work.
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kGroups>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kGroups) : "memory");
}

#define LOCKSTEP_F4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define LOCKSTEP_F16(i) LOCKSTEP_F4(i), LOCKSTEP_F4(i + 4), LOCKSTEP_F4(i + 8), LOCKSTEP_F4(i + 12)
#define LOCKSTEP_F64(i) LOCKSTEP_F16(i), LOCKSTEP_F16(i + 16), LOCKSTEP_F16(i + 32), LOCKSTEP_F16(i + 48)

// d = a b (+ d): 64x256 of the warpgroup, 16 of k. Thread t holds at d[4 j + i] row 16 (t / 32) + t % 32 / 4 + 8 (i /
// 2) and column 8 j + 2 (t % 4) + i % 2. a is k-major.
template <Major kMajorB>
__device__ inline void wgmma_64x256(float (&d)[128], std::uint64_t a, std::uint64_t b, bool add) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %130, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
      "%128, %129, p, 1, 1, 0, %131;\n}"
      : LOCKSTEP_F64(0), LOCKSTEP_F64(64)
      : "l"(a), "l"(b), "r"(static_cast<int>(add)), "n"(kMajorB == Major::kRows ? 1 : 0));
}
#undef LOCKSTEP_F64
#undef LOCKSTEP_F16
#undef LOCKSTEP_F4

}  // namespace lockstep::kernels::cuda::hopper
