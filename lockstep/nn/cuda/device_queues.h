// Ranks as threads on one GPU: marks, copies and reductions on their streams.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "lockstep/comm/device_queues.h"

namespace lockstep::nn {

// A CUDA call failed; the text names it. The communicator reports it as the fault of the operation.
class CudaQueueError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

std::shared_ptr<comm::DeviceQueues> make_cuda_queues(int device);

}  // namespace lockstep::nn
