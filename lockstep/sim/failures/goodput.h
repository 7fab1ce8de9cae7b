// What becomes of a long training run on nodes that fail: how much of the time trains, and where the rest goes.
//
// The run has `nodes` nodes in replicas of `nodes_per_replica`, and `spares` beside them. A node of the run that fails
// interrupts it. Its state comes back from the memory of the others (replicas, or snapshots on the next node) unless
// that is gone too, else from the newest durable checkpoint. A spare takes the node's place; where there is none, the
// run goes on with fewer replicas or waits for a repair. Nodes that come back fill the run up, then are spares.
//
// Checkpoints: as planner/cadence.h has them. Every `interval` training stalls, and the checkpoint can be restored
// `background` seconds after its stall.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/sim/failures/faults.h"

namespace lockstep::sim {

enum class WhenShort { kShrink, kWait };  // of nodes

struct RunOnNodes {
  int nodes = 1;
  int nodes_per_replica = 1;  // the least that can leave; divides nodes
  int spares = 0;
  WhenShort when_short = WhenShort::kShrink;

  double interval_seconds = 1800;  // between the beginnings of two checkpoints; infinity: none
  double stall_seconds = 0;
  double background_seconds = 0;

  bool from_memory = false;        // state survives the loss of a node in the memory of others
  double memory_lost_seconds = 0;  // work since the copy in memory, on average
  double detect_seconds = 0;
  double memory_restart_seconds = 1;  // from detected to training, state from memory
  double disk_restart_seconds = 300;  // the same from a checkpoint: start, read, compile
  double resize_seconds = 3;          // added where the number of replicas changes
};

// Seconds of one run; they add up to what was asked for.
struct Outcome {
  double useful = 0;      // trained and kept, as if with all replicas
  double lost = 0;        // trained and lost
  double stalled = 0;     // checkpoints
  double recovering = 0;  // noticed, restarted
  double waiting = 0;     // for a repair
  double shrunk = 0;      // what the missing replicas would have trained
  double total = 0;
  std::int64_t interruptions = 0;
  std::int64_t from_disk = 0;  // of them
  std::int64_t resizes = 0;
  double worst_lost = 0;    // by one interruption
  std::int64_t events = 0;  // that were simulated
  double goodput() const { return total > 0 ? useful / total : 0; }
};

// `faults`: of nodes 0 .. nodes + spares - 1; the first `nodes` are the run's at the beginning.
Outcome run_through(const FaultTrace& faults, const RunOnNodes& run);

struct Quantiles {
  double low = 0, median = 0, high = 0;  // 5%, 50%, 95%
  double mean = 0;
};
Quantiles quantiles(std::vector<double> values);

// `samples` runs of `seconds`, each with its own faults; the same seed gives the same outcomes, whatever `threads` is.
std::vector<Outcome> study(const FaultSource& source, const RunOnNodes& run, double seconds, int samples,
                           std::uint64_t seed, int threads = 1);

}  // namespace lockstep::sim
