// comm::DeviceQueues on CUDA: events are the marks, one kernel reduces all ranks' buffers in rank order.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <type_traits>

#include "lockstep/nn/cuda/device_queues.h"

namespace lockstep::nn {
namespace {

using comm::DType;
using comm::ReduceOp;

constexpr int kMaxRanks = 64;  // two arrays of pointers travel as kernel arguments, 4 KiB at most
constexpr int kThreads = 256;

void check(cudaError_t result, const char* call) {
  if (result != cudaSuccess) throw CudaQueueError(std::string(call) + ": " + cudaGetErrorString(result));
}

struct Pointers {
  const void* inputs[kMaxRanks];
  void* outputs[kMaxRanks];
};

// What a type is reduced in.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>, float, T>;

template <typename T>
__device__ T combine(T a, T b, ReduceOp op) {
  if (op == ReduceOp::kMax) return b > a ? b : a;
  if (op == ReduceOp::kMin) return b < a ? b : a;
  return a + b;
}

template <typename T>
__global__ void reduce_kernel(Pointers pointers, int inputs, int outputs, std::int64_t count, ReduceOp op) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; i < count; i += step) {
    auto total = static_cast<Wide<T>>(static_cast<const T*>(pointers.inputs[0])[i]);
    for (int k = 1; k < inputs; ++k) {
      total = combine(total, static_cast<Wide<T>>(static_cast<const T*>(pointers.inputs[k])[i]), op);
    }
    const T value = static_cast<T>(total);
    for (int k = 0; k < outputs; ++k) static_cast<T*>(pointers.outputs[k])[i] = value;
  }
}

class CudaQueues final : public comm::DeviceQueues {
 public:
  explicit CudaQueues(int device) : device_(device) {}

  int device() const override { return device_; }

  Mark mark(void* stream) override {
    check(cudaSetDevice(device_), "cudaSetDevice");
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
    Mark mark(event, [](void* made) { cudaEventDestroy(static_cast<cudaEvent_t>(made)); });
    check(cudaEventRecord(event, static_cast<cudaStream_t>(stream)), "cudaEventRecord");
    return mark;
  }

  void wait(void* stream, const Mark& mark) override {
    check(cudaSetDevice(device_), "cudaSetDevice");
    check(cudaStreamWaitEvent(static_cast<cudaStream_t>(stream), static_cast<cudaEvent_t>(mark.get()), 0),
          "cudaStreamWaitEvent");
  }

  void copy(void* stream, void* out, const void* in, std::int64_t bytes) override {
    check(cudaSetDevice(device_), "cudaSetDevice");
    check(cudaMemcpyAsync(out, in, static_cast<std::size_t>(bytes), cudaMemcpyDeviceToDevice,
                          static_cast<cudaStream_t>(stream)),
          "cudaMemcpyAsync");
  }

  void reduce(void* stream, const std::vector<void*>& outputs, const std::vector<const void*>& inputs,
              std::int64_t count, DType dtype, ReduceOp op) override {
    if (inputs.size() > kMaxRanks || outputs.size() > kMaxRanks) {
      throw CudaQueueError("more than " + std::to_string(kMaxRanks) + " ranks share one device");
    }
    check(cudaSetDevice(device_), "cudaSetDevice");
    Pointers pointers{};
    for (std::size_t i = 0; i < inputs.size(); ++i) pointers.inputs[i] = inputs[i];
    for (std::size_t i = 0; i < outputs.size(); ++i) pointers.outputs[i] = outputs[i];
    const auto launch = [&]<typename T>(T) {
      const std::int64_t blocks = std::min<std::int64_t>((count + kThreads - 1) / kThreads, 4096);
      reduce_kernel<T><<<static_cast<unsigned>(blocks), kThreads, 0, static_cast<cudaStream_t>(stream)>>>(
          pointers, static_cast<int>(inputs.size()), static_cast<int>(outputs.size()), count, op);
      check(cudaGetLastError(), "reduce_kernel");
    };
    switch (dtype) {
      case DType::kF64:
        return launch(double{});
      case DType::kF32:
        return launch(float{});
      case DType::kF16:
        return launch(__half{});
      case DType::kBF16:
        return launch(__nv_bfloat16{});
      case DType::kI64:
        return launch(std::int64_t{});
      case DType::kI32:
        return launch(std::int32_t{});
      case DType::kU8:
        return launch(std::uint8_t{});
    }
  }

 private:
  const int device_;
};

}  // namespace

std::shared_ptr<comm::DeviceQueues> make_cuda_queues(int device) { return std::make_shared<CudaQueues>(device); }

}  // namespace lockstep::nn
