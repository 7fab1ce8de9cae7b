// MemoryCounter: bytes that tensors of one rank hold in host memory, now and at the peak. Ranks may be threads of one
// process: a counter counts what its thread allocates and frees. (libtorch reports allocations to the thread they
// happen in; a rank's tensors live and die in the rank's thread, but for the batches that loader threads make.)
// Offloaded state is mapped memory and not counted.
#pragma once

#include <cstdint>
#include <memory>

namespace lockstep::engine {

class MemoryCounter {
 public:
  // Counts for this thread from now until destruction, which must happen in the same thread. Not while libtorch's
  // profiler records in it.
  MemoryCounter();
  ~MemoryCounter();
  MemoryCounter(const MemoryCounter&) = delete;
  MemoryCounter& operator=(const MemoryCounter&) = delete;

  std::int64_t bytes() const;  // allocated and not freed since construction
  std::int64_t peak_bytes() const;
  void reset_peak();

 private:
  class Report;
  struct Guard;
  std::shared_ptr<Report> report_;
  std::unique_ptr<Guard> guard_;
};

}  // namespace lockstep::engine
