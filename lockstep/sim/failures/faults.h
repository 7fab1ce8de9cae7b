// When nodes of a cluster are out of service: recorded, or drawn from a model. Times are seconds.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

namespace lockstep::sim {

struct Fault {
  double begin = 0.0;
  double end = 0.0;  // back in service; infinity: not within what was seen
  int node = 0;      // 0 .. nodes - 1
};

// What a cluster went through, by begin. Faults of one node may overlap.
struct FaultTrace {
  int nodes = 0;
  double seconds = 0.0;  // observed; faults begin in [0, seconds)
  std::vector<Fault> faults;
};

// The format of the InfiniteHBD trace: [{"node_id", "event_time" (days), "event_type": "fault_start"|"fault_end"}].
// `nodes` 0: as many as occur. Throws UserError with the file and the entry that is wrong.
FaultTrace read_fault_trace(const std::filesystem::path& file, int nodes = 0);

// The part of a trace between two times, counted from `first`. What began before is down from the beginning; what did
// not end is open.
FaultTrace part_of(const FaultTrace& trace, double first, double last);

// Nodes out of service at once, over the time of the trace: the smallest number that is enough for `share` of it.
int nodes_down(const FaultTrace& trace, double share);

// Repair times: a distribution, drawn by inverse transform so that one number in [0, 1) gives one time.
class RepairTimes {
 public:
  static RepairTimes constant(double seconds);
  static RepairTimes exponential(double mean_seconds);
  // Log-normal with this median and mean; mean >= median.
  static RepairTimes log_normal(double median_seconds, double mean_seconds);
  // As observed; repairs that had not ended are taken account of (Kaplan and Meier 1958). What is longer than anything
  // observed lasts as long as the longest.
  static RepairTimes observed(const FaultTrace& trace);

  double at(double uniform) const;
  // Of those that take longer than `age`; twice the age where none is known to.
  double at_beyond(double age, double uniform) const;
  double mean() const;

 private:
  std::vector<double> times_;  // quantiles at equal shares, ascending
};

// Draws the faults of `nodes` nodes over `seconds`. The same seed gives the same faults.
class FaultSource {
 public:
  virtual ~FaultSource() = default;
  virtual FaultTrace draw(int nodes, double seconds, std::uint64_t seed) const = 0;
  virtual std::string describe() const = 0;
};

// Every node by itself: exponential times between faults.
std::unique_ptr<FaultSource> independent_faults(double per_node_second, RepairTimes repair);

// The recorded trace itself, begun at a random moment and gone through in a circle. More nodes than it has are copies
// that begin at other moments; of fewer, random ones are taken.
std::unique_ptr<FaultSource> replayed_faults(FaultTrace trace);

// What follows the recorded trace: nodes that were down at its end are down at the beginning and are repaired when
// others that had been down as long were; new faults come as in the trace from a random moment on, in a circle.
std::unique_ptr<FaultSource> continued_faults(FaultTrace trace);

}  // namespace lockstep::sim
