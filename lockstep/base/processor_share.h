// How much of its time a thread had a core when it wanted one: the kernel's own account. On a machine that is busy with
// other programs it tells what those cost from what the thread itself takes.
//
//   const ProcessorTime before = processor_time();
//   work();
//   double undisturbed = wall_seconds * share_between(before, processor_time());
#pragma once

#include <cstdint>
#include <map>

namespace lockstep {

struct ProcessorTime {
  double ran_seconds = 0;     // on a core
  double waited_seconds = 0;  // ready to run, and others did
  ProcessorTime& operator+=(const ProcessorTime& other);
};

// Of the calling thread. Both 0 where the kernel does not count (schedstat). Reads one small file.
ProcessorTime processor_time();

// Of every thread that a process has now, by id; empty where it is gone.
using ThreadTimes = std::map<std::int64_t, ProcessorTime>;
ThreadTimes thread_times_of(std::int64_t process);

// What the thread that ran longest between two readings did in between: the one that works, not those that look after
// it. Both 0 where no thread is in both.
ProcessorTime busiest_between(const ThreadTimes& before, const ThreadTimes& after);

// Of the time between two readings in which the thread wanted a core, the share in which it had one; 1 where nothing
// was counted. Sleeping and waiting for others is neither.
double share_between(const ProcessorTime& before, const ProcessorTime& after);

}  // namespace lockstep
