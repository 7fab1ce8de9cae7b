#include "bench/tune/nccl_model.h"

#include <cmath>

#include <fmt/format.h>

namespace lockstep::bench {

bool NcclFabric::allows(int algorithm, int protocol) const {
  if (protocol == kLl128 && !ll128_safe) return false;
  if (algorithm == kRing || algorithm == kTree) return true;
  if (protocol != kSimple || !hopper) return false;
  return algorithm == kNvls || nodes > 1;
}

std::string NcclFabric::yaml() const {
  return fmt::format("nccl: {{version: 2.30.7, nodes: {}, hopper: {}, ll128_safe: {}}}", nodes, hopper, ll128_safe);
}

NcclFabric draw_fabric(Draws& draws, int most_nodes) {
  NcclFabric fabric;
  do {
    fabric.nodes = 1 << draws.below(5);
  } while (fabric.nodes > most_nodes);
  fabric.hopper = draws.chance(0.6);
  fabric.ll128_safe = draws.chance(0.7);
  return fabric;
}

NcclCosts draw_costs(Draws& draws, const NcclFabric& fabric) {
  NcclCosts costs;
  costs.latency = draws.log_uniform(0.05, 1.5);
  costs.tree_bandwidth = fabric.nodes > 1 ? draws.uniform(0.8, 1.25) : draws.uniform(1.1, 1.5);
  costs.nvls_bandwidth = fabric.nodes > 1 ? draws.uniform(0.85, 1.2) : draws.uniform(0.68, 1.02);
  costs.nvls_tree_bandwidth = draws.uniform(0.75, 1.15);
  costs.ll_bandwidth = draws.uniform(1.7, 3.5);
  costs.ll128_bandwidth = draws.uniform(1.03, 1.2);
  costs.ll_latency = draws.uniform(0.15, 0.4);
  costs.ll128_latency = draws.uniform(0.35, 0.65);
  costs.interference = draws.uniform(0.02, 0.14);
  return costs;
}

double NcclCosts::seconds(const NcclFabric& fabric, int algorithm, int protocol, double volume, double messages) const {
  const double ranks = fabric.nodes * fabric.gpus_per_node;
  const double ring_hops = 2 * (ranks - 1);
  double bandwidth = volume;
  double hops = 1;
  switch (algorithm) {
    case kTree:
      bandwidth *= tree_bandwidth;
      hops = (4 * std::log2(ranks)) / ring_hops;
      break;
    case kNvls:
      bandwidth *= nvls_bandwidth;
      hops = (4.0 + 2 * (fabric.nodes - 1)) / ring_hops;
      break;
    case kNvlsTree:
      bandwidth *= nvls_tree_bandwidth;
      hops = (4 + 4 * std::log2(fabric.nodes)) / ring_hops;
      break;
    default:
      break;
  }
  double latency_factor = 1;
  if (protocol == kLl) bandwidth *= ll_bandwidth, latency_factor = ll_latency;
  if (protocol == kLl128) bandwidth *= ll128_bandwidth, latency_factor = ll128_latency;
  return bandwidth + latency * hops * latency_factor * messages;
}

double NcclCosts::slowdown(int algorithm, int protocol) const {
  const double by_algorithm = algorithm == kNvls || algorithm == kNvlsTree ? 0.4 : algorithm == kTree ? 0.8 : 1.0;
  return interference * by_algorithm * (protocol == kLl ? 1.4 : 1.0);
}

std::vector<SurfaceKnob> nccl_knobs(int algorithms) {
  std::vector<tune::Value> names = levels_of({"Ring", "Tree", "NVLS", "NVLSTree"});
  names.resize(static_cast<std::size_t>(algorithms));
  return {{.name = "NCCL_ALGO", .levels = names},
          {.name = "NCCL_PROTO", .levels = levels_of({"Simple", "LL", "LL128"})}};
}

SurfaceRule nccl_rule(NcclFabric fabric, NcclKnobs knobs) {
  const auto algorithm = static_cast<std::size_t>(knobs.algorithm);
  const auto protocol = static_cast<std::size_t>(knobs.protocol);
  return {.knobs = {knobs.algorithm, knobs.protocol},
          .holds = [=](PointView point) { return fabric.allows(point[algorithm], point[protocol]); }};
}

}  // namespace lockstep::bench
