// Faults that come in bursts: a model with few numbers, fitted to a trace or given where only a rate is known.
//
// Nodes fail together (a switch, a rack, a bad driver), and some weeks are worse than others. So bursts begin at a rate
// that is drawn anew for every epoch from a Gamma distribution (a doubly stochastic process), each burst takes several
// nodes within a short time, and each node is repaired by itself.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "lockstep/sim/failures/faults.h"

namespace lockstep::sim {

struct BurstModel {
  double bursts_per_node_second = 0.0;
  std::vector<double> sizes;      // share of bursts that take 1, 2, ... nodes; sums to 1
  double spread_seconds = 600.0;  // mean time between two faults of one burst
  double epoch_seconds = 0.0;     // for how long a rate stays; 0: for ever the same
  double shape = 0.0;             // of the Gamma distribution of rates, mean 1; 0: they do not differ
  RepairTimes repair = RepairTimes::constant(0.0);

  double mean_size() const;
};

// Faults within an hour of the one before belong to one burst; epochs of ten days, the shape by moments; repairs as
// observed. Needs two faults: UserError otherwise.
BurstModel fit_bursts(const FaultTrace& trace);

// Where only the rate of faults is known: sizes, variation and repairs as usual for clusters whose traces are public.
BurstModel usual_bursts(double faults_per_node_second);

std::unique_ptr<FaultSource> faults_in_bursts(BurstModel model);

// How many nodes are down at once in a period of `seconds`: enough for `share` of its time. Over `samples` periods.
struct SparesNeeded {
  double low = 0.0, expected = 0.0, high = 0.0;  // 5%, 50% and 95% of the periods need no more
};
SparesNeeded spares_needed(const FaultSource& source, int nodes, double seconds, double share, int samples,
                           std::uint64_t seed);

}  // namespace lockstep::sim
