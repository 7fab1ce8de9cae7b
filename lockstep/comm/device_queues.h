// What the local backend asks of a device whose memory all ranks of this process reach: one GPU with a stream per rank.
// Nothing here waits for the device; calls only queue work. Any thread. Failures throw, and become the operation's.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/comm/dtype.h"

namespace lockstep::comm {

class DeviceQueues {
 public:
  // A point of a stream. Keeps the device's object alive.
  using Mark = std::shared_ptr<void>;

  virtual ~DeviceQueues() = default;

  virtual int device() const = 0;
  virtual Mark mark(void* stream) = 0;
  // What is queued on `stream` from now on runs after the mark.
  virtual void wait(void* stream, const Mark& mark) = 0;
  virtual void copy(void* stream, void* out, const void* in, std::int64_t bytes) = 0;
  // Every output receives inputs[0][i] op inputs[1][i] op ..., from left to right; f16 and bf16 are accumulated in f32
  // and rounded once. An output may be one of the inputs.
  virtual void reduce(void* stream, const std::vector<void*>& outputs, const std::vector<const void*>& inputs,
                      std::int64_t count, DType dtype, ReduceOp op) = 0;
};

}  // namespace lockstep::comm
