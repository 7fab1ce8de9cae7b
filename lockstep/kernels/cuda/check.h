// Checks of CUDA runtime calls: every failure names the call and its place.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

namespace lockstep::kernels::cuda {

class CudaError : public std::runtime_error {
 public:
  CudaError(const std::string& what, cudaError_t code) : std::runtime_error(what), code_(code) {}
  cudaError_t code() const { return code_; }

 private:
  cudaError_t code_;
};

inline void check_cuda(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaSuccess) return;
  throw CudaError(
      std::string("[cuda] ") + call + " at " + file + ":" + std::to_string(line) + ": " + cudaGetErrorString(status),
      status);
}

}  // namespace lockstep::kernels::cuda

#define LOCKSTEP_CUDA(call) ::lockstep::kernels::cuda::check_cuda((call), #call, __FILE__, __LINE__)
// After a launch: bad configurations show here, faults inside the kernel at the next synchronisation.
#define LOCKSTEP_CUDA_LAUNCHED() LOCKSTEP_CUDA(cudaGetLastError())
