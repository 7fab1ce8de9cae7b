#include "lockstep/kernels/cuda/hopper/tensor_map.h"

#include "lockstep/kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda::hopper {
namespace {

using Encode = decltype(&cuTensorMapEncodeTiled);

// From the driver that the runtime has loaded: the library need not be linked with it.
Encode encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  LOCKSTEP_CUDA(
      cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
  require(found == cudaDriverEntryPointSuccess && function != nullptr, "tensor_map", "the driver is too old");
  return reinterpret_cast<Encode>(function);
}

}  // namespace

CUtensorMap tensor_map(const Bf16* data, std::int64_t rows, std::int64_t columns, unsigned box_rows) {
  static const Encode encode = encoder();
  CUtensorMap map{};
  const cuuint64_t size[] = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const cuuint64_t pitch[] = {static_cast<cuuint64_t>(columns) * sizeof(Bf16)};
  const cuuint32_t box[] = {64, box_rows}, step[] = {1, 1};
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<Bf16*>(data), size, pitch, box,
                                 step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  require(result == CUDA_SUCCESS, "tensor_map", "the driver refuses this matrix");
  return map;
}

}  // namespace lockstep::kernels::cuda::hopper
