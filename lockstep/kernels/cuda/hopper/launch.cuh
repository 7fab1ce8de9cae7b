// Starting persistent_gemm, and where it can be used.
#pragma once

#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/hopper/persistent_gemm.cuh"
#include "lockstep/kernels/cuda/hopper/tensor_map.h"

namespace lockstep::kernels::cuda::hopper {

// a [m, k]; b [columns of c, k] for Major::kK, [k, columns of c] for Major::kRows.
struct Product {
  const Bf16 *a = nullptr, *b = nullptr;
  std::int64_t m = 0, n = 0, k = 0;
  std::int64_t pair_offset = 0;
};

// Compute capability 9.0: the instructions are of this chip alone.
inline bool device_fits() {
  int device = 0, major = 0, minor = 0;
  LOCKSTEP_CUDA(cudaGetDevice(&device));
  LOCKSTEP_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  LOCKSTEP_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return major == 9 && minor == 0;
}
inline bool product_fits(std::int64_t m, std::int64_t n, std::int64_t k) {
  return m > 0 && n > 0 && k > 0 && m % (kCluster * kTileRows) == 0 && n % kTileColumns == 0 && k % kTileK == 0 &&
         m < (1 << 30) && n < (1 << 30) && k < (1 << 30);
}

constexpr unsigned kGroup = 8;  // Walk::group; 4, 16 and 32 were 0 to 10% slower

// Blocks of so many clusters as the current device runs at a time; asked once per kernel and process.
template <class E>
unsigned resident_blocks() {
  static const int clusters = [] {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(static_cast<unsigned>(multiprocessors()) / kCluster * kCluster);
    config.blockDim = dim3(kThreads);
    config.dynamicSmemBytes = kSharedBytes;
    cudaLaunchAttribute size{};
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim = {kCluster, 1, 1};
    config.attrs = &size;
    config.numAttrs = 1;
    int count = 0;
    LOCKSTEP_CUDA(cudaOccupancyMaxActiveClusters(&count, persistent_gemm<E>, &config));
    return count;
  }();
  require(clusters > 0, "persistent_gemm", "no cluster fits on this device");
  return static_cast<unsigned>(clusters) * kCluster;
}

template <class E>
void run_persistent(const Product& p, const typename E::Arguments& arguments, cudaStream_t stream) {
  const bool k_major = E::kMajor == Major::kK;
  const CUtensorMap a = tensor_map(p.a, p.m, p.k, kTileRows);
  const CUtensorMap b = k_major ? tensor_map(p.b, p.n, p.k, kTileColumns / 2) : tensor_map(p.b, p.k, p.n, kTileK);
  Walk walk{};
  walk.row_tiles = static_cast<unsigned>(p.m / (kCluster * kTileRows));
  walk.column_tiles = static_cast<unsigned>(p.n / kTileColumns);
  walk.k_blocks = static_cast<unsigned>(p.k / kTileK);
  walk.group = kGroup;
  walk.pair_offset = static_cast<unsigned>(p.pair_offset);
  LOCKSTEP_CUDA(cudaFuncSetAttribute(persistent_gemm<E>, cudaFuncAttributeMaxDynamicSharedMemorySize, kSharedBytes));
  persistent_gemm<E><<<resident_blocks<E>(), kThreads, kSharedBytes, stream>>>(a, b, walk, arguments);
  LOCKSTEP_CUDA_LAUNCHED();
}

}  // namespace lockstep::kernels::cuda::hopper
