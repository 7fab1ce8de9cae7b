// All-reduce and barrier through shared memory, for groups whose ranks all run on one host.
//
// Every rank has two areas in one segment, used in turn. A buffer goes through them chunk by chunk: each rank writes
// the slices that others reduce into its area, reduces its own slice in rank order out of all areas, and reads the
// others' results. Waiting is a futex with short timeouts. Each rank holds a lock on one byte of the segment's file;
// the kernel drops it when the process ends, however it ends, and that is how the others learn of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/plugin_export.h"

namespace lockstep::comm {

class SharedMemory {
 public:
  // Collective. Null on every rank when one of them cannot use the segment: another host, another container, no room.
  static std::unique_ptr<SharedMemory> open(const HostStore& store, const std::string& place, int rank, int size,
                                            Clock::time_point deadline);
  ~SharedMemory();

  // As Backend::run; one at a time.
  void all_reduce(const Operation& operation, Clock::time_point deadline);
  void barrier(Clock::time_point deadline);
  void abort() noexcept;

 private:
  struct Control;  // what a rank shows to the others
  SharedMemory(int rank, int size) : rank_(rank), size_(size) {}

  bool create(const std::string& name);
  bool attach(const std::string& name);
  bool map_and_lock();
  bool is_alive(int rank) const;
  void meet(Clock::time_point deadline);  // blocks until all ranks have come as far as this one
  void wait_for(int rank, Clock::time_point deadline);
  void reduce_chunk(const Operation& operation, std::int64_t begin, std::int64_t count, Clock::time_point deadline);
  Control& control(int rank) const;
  std::byte* area(int rank) const;  // the one in use now
  std::size_t segment_bytes() const;

  const int rank_;
  const int size_;
  int fd_ = -1;
  std::byte* base_ = nullptr;
  std::uint32_t step_ = 0;
  int turn_ = 0;
  std::atomic<bool> stop_{false};
};

}  // namespace lockstep::comm
