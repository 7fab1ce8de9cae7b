// The local backend's operations on device memory: everything here queues work and returns. The helpers serve host
// memory too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/device_queues.h"

namespace lockstep::comm {

inline const std::byte* at(const void* data, std::int64_t bytes) { return static_cast<const std::byte*>(data) + bytes; }
inline std::byte* at(void* data, std::int64_t bytes) { return static_cast<std::byte*>(data) + bytes; }

// What `rank` receives in an all_to_all whose operations, by rank, are `all`: move(to, from, bytes) for each source.
template <class Move>
void move_all_to_all(int rank, const std::vector<const Operation*>& all, Move move) {
  const Operation& own = *all[static_cast<std::size_t>(rank)];
  const std::int64_t element = size_of(own.output.dtype);
  std::int64_t written = 0;
  for (std::size_t source = 0; source < all.size(); ++source) {
    const Operation& other = *all[source];
    std::int64_t offset = 0;
    for (int i = 0; i < rank; ++i) offset += other.send_counts[static_cast<std::size_t>(i)];
    const std::int64_t count = own.receive_counts[source];
    move(at(own.output.data, written * element), at(other.input.data, offset * element), count * element);
    written += count;
  }
}

// This rank's part of a collective whose operations, by rank, are `all`, on its own stream and after the marks in
// all tickets (a DeviceQueues::Mark). Returns the mark after that part. Reductions go in rank order and each
// element is reduced once, by one rank, for all.
DeviceQueues::Mark queue_collective(DeviceQueues& device, int rank, const std::vector<const Operation*>& all);

// The copy of a message, on the receiver's stream; returns the mark after it.
DeviceQueues::Mark queue_copy(DeviceQueues& device, const Operation& sent, const Operation& received);

}  // namespace lockstep::comm
