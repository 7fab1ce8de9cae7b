// Hopper's asynchronous machinery as functions: barriers in shared memory, copies by the tensor memory accelerator
// (TMA), clusters of two blocks, the exchange of registers between warpgroups. For sm_90a only.
#pragma once

#include <cuda.h>  // CUtensorMap; no driver function is called from here

#include <cstdint>

namespace lockstep::kernels::cuda::hopper {

// A place in shared memory as the instructions want it.
__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

// Barriers: 8 bytes of shared memory each, given by address.
__device__ inline void barrier_init(std::uint32_t barrier, unsigned arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
// Makes initialised barriers known to the other blocks of the cluster and to the TMA.
__device__ inline void barrier_init_done() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

__device__ inline bool barrier_try_wait(std::uint32_t barrier, unsigned parity) {
  std::uint32_t done;
  asm volatile(
      "{\n .reg .pred p;\n"
      " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      " selp.u32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
// Returns once the phase of this parity is over.
__device__ inline void barrier_wait(std::uint32_t barrier, unsigned parity) {
  while (!barrier_try_wait(barrier, parity)) {
  }
}
__device__ inline void barrier_arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// On the same barrier of the cluster's block `rank`.
__device__ inline void barrier_arrive_at(std::uint32_t barrier, unsigned rank) {
  asm volatile(
      "{\n .reg .b32 there;\n"
      " mapa.shared::cluster.u32 there, %0, %1;\n"
      " mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(barrier),
      "r"(rank)
      : "memory");
}
// Arrives, and has the phase wait for `bytes` of copies as well.
__device__ inline void barrier_arrive_expect(std::uint32_t barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}

// Rank of this block in its cluster, and a barrier of all threads of the cluster.
__device__ inline unsigned cluster_rank() {
  std::uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
__device__ inline void cluster_sync() {
  asm volatile("barrier.cluster.arrive.aligned;\n barrier.cluster.wait.aligned;" ::: "memory");
}

// Copies the box at (column, row) of a matrix to shared memory; its bytes count on `barrier`.
__device__ inline void tma_load(std::uint32_t to, const CUtensorMap& map, int column, int row, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];" ::
          "r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier)
      : "memory");
}
// The same to the same place in every block of the cluster in `blocks` (a bit each), and on their barriers.
__device__ inline void tma_load_to(std::uint32_t to, const CUtensorMap& map, int column, int row, std::uint32_t barrier,
                                   std::uint16_t blocks) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(to),
      "l"(&map), "r"(column), "r"(row), "r"(barrier), "h"(blocks)
      : "memory");
}
__device__ inline void tma_prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// Registers per thread of the whole warpgroup from here on.
template <int kRegisters>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Four 8x8 matrices of 16-bit elements to shared memory: lane l gives the address of row l % 8 of matrix l / 8.
__device__ inline void store_matrices(std::uint32_t address, const std::uint32_t (&word)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(word[0]),
               "r"(word[1]), "r"(word[2]), "r"(word[3])
               : "memory");
}

}  // namespace lockstep::kernels::cuda::hopper
