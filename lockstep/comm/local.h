// The local backend: ranks are threads of one process. For tests, for one-process runs and as the reference that the
// other backends are compared with: reductions go in rank order and are bit-identical from run to run.
#pragma once

#include <memory>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/device_queues.h"

namespace lockstep::comm {

class LocalExchange;

// The meeting point of `size` ranks. Give communicator(r) to the thread of rank r; the world may be destroyed before
// the communicators. A communicator that is dropped with work in flight, or aborted, is a lost peer to the others at
// once.
class LocalWorld {
 public:
  // With `device`, buffers may lie in its memory: all ranks then share that one device.
  explicit LocalWorld(int size, milliseconds timeout = milliseconds{300'000},
                      std::shared_ptr<DeviceQueues> device = nullptr);
  ~LocalWorld();

  int size() const { return size_; }

  // Any thread. Each rank is handed out once.
  Communicator communicator(int rank, const std::string& name = "world");

 private:
  int size_;
  milliseconds timeout_;
  std::shared_ptr<LocalExchange> exchange_;
};

}  // namespace lockstep::comm
