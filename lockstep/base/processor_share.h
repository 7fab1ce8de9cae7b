// How much of its time a thread had a core when it wanted one: the kernel's own account. On a machine that is busy with
// other programs it tells what those cost from what the thread itself takes.
//
//   const ProcessorTime before = processor_time();
//   work();
//   double undisturbed = wall_seconds * share_between(before, processor_time());
#pragma once

#include <cstdint>

namespace lockstep {

struct ProcessorTime {
  double ran_seconds = 0;     // on a core
  double waited_seconds = 0;  // ready to run, and others did
  ProcessorTime& operator+=(const ProcessorTime& other);
};

// Of the calling thread. Both 0 where the kernel does not count (schedstat). Reads one small file.
ProcessorTime processor_time();

// Of all threads that a process has now, together; both 0 where it is gone.
ProcessorTime processor_time_of(std::int64_t process);

// Of the time between two readings in which the thread wanted a core, the share in which it had one; 1 where nothing
// was counted. Sleeping and waiting for others is neither.
double share_between(const ProcessorTime& before, const ProcessorTime& after);

}  // namespace lockstep
