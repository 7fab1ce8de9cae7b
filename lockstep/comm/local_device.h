// The local backend's operations on device memory: everything here queues work and returns.
#pragma once

#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/device_queues.h"

namespace lockstep::comm {

// This rank's part of a collective whose operations, by rank, are `all`, on its own stream and after the marks in
// all tickets (a DeviceQueues::Mark). Returns the mark after that part. Reductions go in rank order and each
// element is reduced once, by one rank, for all.
DeviceQueues::Mark queue_collective(DeviceQueues& device, int rank, const std::vector<const Operation*>& all);

// The copy of a message, on the receiver's stream; returns the mark after it.
DeviceQueues::Mark queue_copy(DeviceQueues& device, const Operation& sent, const Operation& received);

}  // namespace lockstep::comm
