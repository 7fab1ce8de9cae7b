// What an expert computes from a device trace: how long the device worked, at what, and why it did not when it did not.
#pragma once

#include <string>
#include <vector>

#include "lockstep/diagnose/foreign/intervals.h"
#include "lockstep/diagnose/foreign/trace.h"

namespace lockstep::diagnose {

// Of one device of one trace. Seconds add up: window = busy + idle; idle = the six idle_ parts.
struct Figures {
  int device = 0;
  Interval window;
  int steps = 0;  // that the profiler marked; 0: it marked none
  double window_seconds = 0.0;
  double busy_seconds = 0.0;     // anything ran
  double compute_seconds = 0.0;  // a kernel ran that does not communicate
  double communication_seconds = 0.0;
  double exposed_seconds = 0.0;       // communication while no other kernel ran
  double exposed_copy_seconds = 0.0;  // to or from the host while no kernel ran
  double idle_seconds = 0.0;
  double idle_loader_seconds = 0.0;    // the program waited for data
  double idle_allocate_seconds = 0.0;  // ... was in cudaMalloc or cudaFree
  double idle_save_seconds = 0.0;      // ... wrote a checkpoint
  double idle_collective_seconds =
      0.0;                           // ... asked for a collective: the gap right before or after a communication kernel
  double idle_launch_seconds = 0.0;  // ... asked for the next kernel too late, by less than kShortGapNs
  double idle_host_seconds = 0.0;    // ... by more
  double idle_waiting_seconds = 0.0;  // the next kernel had been asked for: it waited for something else
  double loader_seconds = 0.0;        // the program waited for data, idle or not
  std::int64_t kernels = 0;
  double median_kernel_seconds = 0.0;
  std::int64_t communication_kernels = 0;
  double mean_communication_seconds = 0.0;
  double mean_message_bytes = 0.0;  // 0: not told
  std::int64_t messages_told = 0;
  std::int64_t synchronizations = 0;
  double synchronize_seconds = 0.0;
  std::int64_t allocations = 0;
  std::string longest_communication;  // the kernel that took most of it
  double idle_is_known = 1.0;         // 0: events are missing, idle time says nothing

  double share(double seconds) const { return window_seconds > 0.0 ? seconds / window_seconds : 0.0; }
  double percent(double seconds) const { return 100.0 * share(seconds); }
  double overlap_share() const {
    return communication_seconds > 0.0 ? 1.0 - exposed_seconds / communication_seconds : 0.0;
  }
};

// A pause that launching one kernel after another makes; a longer one is the program's own.
inline constexpr std::int64_t kShortGapNs = 100'000;

// Under this share of the driver's calls a trace is thinned out.
inline constexpr double kThinTrace = 0.03;

// One per device; of a trace without devices one of the program itself (operators, collectives of gloo and MPI).
std::vector<Figures> figures_of(const Trace& trace);

// From the first device work of the first step to the last work of the last; without steps, all that the device did.
Interval window_of(const Trace& trace);

// The marked steps: numbers of ProfilerStep#N (or 0, 1, ... where they have none) with their times, in order.
struct MarkedStep {
  std::int64_t number = 0;
  Interval time;
};
std::vector<MarkedStep> marked_steps(const Trace& trace);

}  // namespace lockstep::diagnose
