// What the surfaces share about NCCL: which pairs of algorithm and protocol exist on a fabric, and what an all-reduce
// costs with them. Facts of NCCL 2.30; the constants are drawn per instance.
#pragma once

#include <string>

#include "bench/tune/surface.h"

namespace lockstep::bench {

// Levels of NCCL_ALGO and NCCL_PROTO, in the order of the space files.
enum NcclAlgorithm { kRing, kTree, kNvls, kNvlsTree };
enum NcclProtocol { kSimple, kLl, kLl128 };

struct NcclFabric {
  int nodes = 1;
  int gpus_per_node = 8;
  bool hopper = true;
  bool ll128_safe = true;

  bool allows(int algorithm, int protocol) const;
  std::string yaml() const;
};

NcclFabric draw_fabric(Draws& draws, int most_nodes);

// Relative to a ring with Simple, whose bandwidth term is 1.
struct NcclCosts {
  double latency = 0.1;       // of one ring all-reduce with Simple, in the same unit as its bandwidth term
  double tree_bandwidth = 1;  // time factors of the bandwidth term
  double nvls_bandwidth = 1;
  double nvls_tree_bandwidth = 1;
  double ll_bandwidth = 2.2;
  double ll128_bandwidth = 1.08;
  double ll_latency = 0.3;  // of Simple's latency
  double ll128_latency = 0.45;
  double interference = 0.06;  // slowdown of kernels that run beside it

  template <class F>
  void each(F change) {
    for (double* value : {&latency, &tree_bandwidth, &nvls_bandwidth, &nvls_tree_bandwidth, &ll_bandwidth,
                          &ll128_bandwidth, &ll_latency, &ll128_latency, &interference}) {
      change(*value);
    }
  }
  // Seconds of an all-reduce of `volume` in `messages` pieces, over a fabric.
  double seconds(const NcclFabric& fabric, int algorithm, int protocol, double volume, double messages) const;
  double slowdown(int algorithm, int protocol) const;  // of compute beside it, as a fraction
};

NcclCosts draw_costs(Draws& draws, const NcclFabric& fabric);

// NCCL_ALGO, NCCL_PROTO and the rule between them; their indices are returned.
struct NcclKnobs {
  int algorithm = 0;
  int protocol = 0;
};
std::vector<SurfaceKnob> nccl_knobs(int algorithms);
SurfaceRule nccl_rule(NcclFabric fabric, NcclKnobs knobs);

}  // namespace lockstep::bench
