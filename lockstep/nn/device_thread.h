// A rank's thread on a device. Ranks may be threads that share one GPU.
#pragma once

#include <torch/types.h>

#include <memory>

#include "lockstep/comm/device_queues.h"

namespace lockstep::nn {

// While it lives, in the thread that made it: libtorch works on `device`, on a stream of this thread's own; backward
// runs in this thread, not in the one worker that libtorch keeps per device, where two ranks that wait for each other
// would wait forever. Does nothing on the CPU. Destroy it in the same thread.
class DeviceThread {
 public:
  explicit DeviceThread(torch::Device device);
  ~DeviceThread();
  DeviceThread(const DeviceThread&) = delete;
  DeviceThread& operator=(const DeviceThread&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;  // null on the CPU
};

// The native handle (cudaStream_t) of libtorch's current stream of that device in this thread; nullptr on the CPU.
void* current_stream(torch::Device device);

// For comm::LocalWorld, so that ranks as threads exchange memory of this device; null on the CPU. environment_error
// where this build has no CUDA.
std::shared_ptr<comm::DeviceQueues> device_queues(torch::Device device);

}  // namespace lockstep::nn
