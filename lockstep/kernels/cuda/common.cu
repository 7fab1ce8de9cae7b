#include "lockstep/kernels/cuda/common.cuh"

namespace lockstep::kernels::cuda {

void require(bool condition, const char* where, const char* message) {
  if (!condition) throw std::invalid_argument(std::string("[") + where + "] " + message);
}

int multiprocessors() {
  int device = 0, count = 0;
  LOCKSTEP_CUDA(cudaGetDevice(&device));
  LOCKSTEP_CUDA(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device));
  return count;
}

}  // namespace lockstep::kernels::cuda
