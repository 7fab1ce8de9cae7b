#include "lockstep/nn/device_thread.h"

#include <c10/core/impl/VirtualGuardImpl.h>

#include "lockstep/base/error.h"
#include "lockstep/nn/torch_compat.h"
#ifdef LOCKSTEP_TORCH_HAS_CUDA
#include "lockstep/nn/cuda/device_queues.h"
#endif
#if LOCKSTEP_TORCH_AT_LEAST(2, 0)
#include <c10/core/AutogradState.h>
#endif

namespace lockstep::nn {

#if LOCKSTEP_TORCH_AT_LEAST(2, 7)
struct DeviceThread::State {
  explicit State(torch::Device device)
      : guard(device.type()),
        device_before(guard.exchangeDevice(device)),
        stream_before(guard.exchangeStream(guard.getStreamFromGlobalPool(device))),
        threads_before(c10::AutogradState::get_tls_state().get_multithreading_enabled()) {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(false);
  }
  ~State() {
    c10::AutogradState::get_tls_state().set_multithreading_enabled(threads_before);
    guard.exchangeStream(stream_before);
    guard.uncheckedSetDevice(device_before);
  }

  c10::impl::VirtualGuardImpl guard;
  torch::Device device_before;
  c10::Stream stream_before;
  bool threads_before;
};

void* current_stream(torch::Device device) {
  if (device.is_cpu()) return nullptr;
  const c10::impl::VirtualGuardImpl guard(device.type());
  return guard.getStreamNativeHandle(guard.getStream(device));
}
#else
struct DeviceThread::State {
  explicit State(torch::Device) {
    throw environment_error("ranks on a GPU need libtorch 2.7 or later",
                            "build with `make cuda` against a newer torch");
  }
};

void* current_stream(torch::Device device) {
  LOCKSTEP_ASSERT(device.is_cpu(), "tensors of a device have no stream in this build");
  return nullptr;
}
#endif

DeviceThread::DeviceThread(torch::Device device) {
  if (!device.is_cpu()) state_ = std::make_unique<State>(device);
}

DeviceThread::~DeviceThread() = default;

std::shared_ptr<comm::DeviceQueues> device_queues(torch::Device device) {
  if (device.is_cpu()) return nullptr;
#ifdef LOCKSTEP_TORCH_HAS_CUDA
  return make_cuda_queues(device.index() < 0 ? 0 : device.index());
#else
  throw environment_error("this build has no CUDA", "build with `make cuda` against a torch that has CUDA");
#endif
}

}  // namespace lockstep::nn
