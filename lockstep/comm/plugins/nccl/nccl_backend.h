// NCCL on a stream of its own. The caller's stream is marked when an operation is called (prepare); our stream waits
// for that mark; join() makes the caller's stream wait for an event after the operation, so no thread waits for
// the device but the group's, which is the watchdog: it looks at that event and at NCCL's asynchronous error until the
// deadline, and then aborts NCCL's communicator, which ends its kernels. The communicator is non-blocking, so that
// neither connecting nor a lost peer can hold a thread beyond its deadline.
//
// Host memory (a loss, a text) goes through a buffer on the device.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/plugin_export.h"
#include "lockstep/comm/plugins/nccl/nccl_calls.h"

namespace lockstep::comm {

struct NcclWorld {
  std::shared_ptr<NcclCalls> calls;
  HostStore store{nullptr, ""};
  int device = 0;
  std::vector<GroupSettings> groups;
};

// Connects; blocks at most until the deadline. `place` names the group in the store, `name` chooses its settings.
std::unique_ptr<Backend> open_nccl_group(const NcclWorld& world, const std::string& place, const std::string& name,
                                         int rank, int size, Clock::time_point deadline);

}  // namespace lockstep::comm
