// Owners of CUDA handles and of pinned memory.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "lockstep/kernels/cuda/check.h"

namespace lockstep::engine::cuda {

// A handle with one way to be destroyed; destruction is not checked, the driver may be gone at the end of a process.
template <class Handle, cudaError_t (*kDestroy)(Handle)>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Handle handle) : handle_(handle) {}
  ~Owned() {
    if (handle_ != nullptr) kDestroy(handle_);
  }
  Owned(Owned&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  Handle get() const { return handle_; }
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  Handle handle_ = nullptr;
};
using Stream = Owned<cudaStream_t, cudaStreamDestroy>;
using Event = Owned<cudaEvent_t, cudaEventDestroy>;
using GraphExec = Owned<cudaGraphExec_t, cudaGraphExecDestroy>;

inline Stream make_stream() {
  cudaStream_t stream = nullptr;
  LOCKSTEP_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return Stream(stream);
}
inline Event make_event() {
  cudaEvent_t event = nullptr;
  LOCKSTEP_CUDA(cudaEventCreate(&event));
  return Event(event);
}

// An array of pinned host memory.
template <class T>
class Pinned {
 public:
  explicit Pinned(std::size_t count) {
    LOCKSTEP_CUDA(cudaMallocHost(reinterpret_cast<void**>(&data_), count * sizeof(T)));
  }
  ~Pinned() {
    if (data_ != nullptr) cudaFreeHost(data_);
  }
  Pinned(Pinned&& other) noexcept : data_(std::exchange(other.data_, nullptr)) {}
  Pinned& operator=(Pinned&&) = delete;
  T* get() const { return data_; }

 private:
  T* data_ = nullptr;
};

}  // namespace lockstep::engine::cuda
