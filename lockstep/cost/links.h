// Where a communication group sits on the cluster and what a collective costs there. Pure functions.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "lockstep/base/units.h"
#include "lockstep/cost/nccl_knobs.h"
#include "lockstep/cost/profile/profile.h"

namespace lockstep::cost {

// Ranks of one group: `per_node` of them on each of `nodes` nodes.
struct GroupPlacement {
  std::int64_t ranks = 1;
  std::int64_t per_node = 1;
  std::int64_t nodes = 1;
};

// `ranks` members that are `stride` ranks apart, on nodes of `devices` devices filled in rank order.
inline GroupPlacement place_group(std::int64_t ranks, std::int64_t stride, std::int64_t devices) {
  const std::int64_t per_node = std::clamp(devices / std::max<std::int64_t>(stride, 1), std::int64_t{1}, ranks);
  return {.ranks = ranks, .per_node = per_node, .nodes = (ranks + per_node - 1) / per_node};
}

// The same where blocks of neighbours need not end where nodes do (three ranks on nodes of eight): of all groups of
// `ranks` x `stride` consecutive ranks that lie in the nodes' `first` to `end`, counted from the first device of the
// first node, the worst one. Blocks begin at multiples of their size less `first_rank`.
GroupPlacement place_anywhere(std::int64_t ranks, std::int64_t stride, std::int64_t devices, std::int64_t first_rank,
                              std::int64_t end_rank);

struct LinkRates {
  BytesPerSecond intra;    // of one device inside its node
  BytesPerSecond nic;      // a device's share of its node's NICs: all devices of a node talk at once
  BytesPerSecond port;     // one NIC: the most that a device gets of them while others are silent
  BytesPerSecond between;  // a group's share of the link between node groups; 0: it does not cross it
  Seconds intra_latency;
  Seconds inter_latency;
  double node_falloff = 0;
  double gather_efficiency = 1;  // of all-gather and reduce-scatter between nodes, relative to all-reduce
  NcclKnobs nccl;                // as set in the environment; by default NCCL chooses, which is what was fitted
  bool has_nvls = false;         // the switch can add up
};

// Bus bandwidth of a ring through the group: inside a node the device's own link; between nodes what the group's
// members on one node bring together in NIC shares, falling off with the number of nodes as measured clusters do.
inline BytesPerSecond bus_bandwidth(const LinkRates& links, const GroupPlacement& group) {
  if (group.nodes <= 1) return links.intra;
  const double falloff = std::pow(static_cast<double>(group.nodes) / 2, -links.node_falloff);
  const BytesPerSecond nics = links.nic * (static_cast<double>(group.per_node) * falloff);
  const BytesPerSecond bus = std::min(links.intra, nics);
  return links.between.value() > 0 ? std::min(bus, links.between) : bus;
}

// Seconds of one collective over `bytes` (the reduced buffer, the gathered result) as the library chooses to run it:
// ring volumes of Patarasuk & Yuan
// 2009 over the bus bandwidth. Rings pay a latency per hop, and one hop between nodes paces them all; all-reduce
// between nodes goes through trees (Sanders et al. 2009), whose depth is logarithmic.
inline Seconds usual_collective(const LinkRates& links, const GroupPlacement& group, CollectiveOp op, Bytes bytes) {
  if (group.ranks <= 1) return Seconds(0);
  const double n = static_cast<double>(group.ranks);
  const double inside = static_cast<double>(group.per_node - 1);
  const double nodes = static_cast<double>(group.nodes);
  switch (op) {
    case CollectiveOp::kAllReduce:
      return bytes * (2 * (n - 1) / n) / bus_bandwidth(links, group) + links.intra_latency * (2 * inside) +
             links.inter_latency * (2 * std::log2(nodes));
    case CollectiveOp::kReduceScatter:
    case CollectiveOp::kAllGather:
      if (group.nodes <= 1) return bytes * ((n - 1) / n) / links.intra + links.intra_latency * inside;
      return bytes * ((n - 1) / n) / (bus_bandwidth(links, group) * links.gather_efficiency) +
             links.inter_latency * (n - 1);
    case CollectiveOp::kAllToAll: {
      // Pairs inside a node use its links, the rest the NIC share; both at once.
      const double remote = (n - static_cast<double>(group.per_node)) / n;
      const double falloff = std::pow(std::max(nodes, 2.0) / 2, -links.node_falloff);
      const Seconds local = bytes * (inside / n) / links.intra + links.intra_latency * inside;
      if (group.nodes <= 1) return local;
      const BytesPerSecond share = links.between.value() > 0 ? std::min(links.nic, links.between / n) : links.nic;
      return std::max(local, bytes * remote / (share * falloff) + links.inter_latency * (nodes - 1));
    }
    case CollectiveOp::kBroadcast:
      return bytes / bus_bandwidth(links, group) + links.intra_latency * inside +
             links.inter_latency * std::log2(nodes);
    case CollectiveOp::kSendReceive:
      return group.nodes <= 1 ? bytes / links.intra + links.intra_latency : bytes / links.nic + links.inter_latency;
  }
  return Seconds(0);
}

// The same as NCCL's variables make it run.
inline Seconds collective_on_links(const LinkRates& links, const GroupPlacement& group, CollectiveOp op, Bytes bytes) {
  const Seconds usual = usual_collective(links, group, op, bytes);
  if (!links.nccl.is_set()) return usual;
  const double bus = bus_bandwidth(links, group).value();
  return usual * nccl_time_ratio(links.nccl, group, op, bytes.value(), bus, links.has_nvls);
}

// Compute and a collective that runs beside it: `exposed` of the collective is never hidden, the rest hides as far as
// the compute is long, and slows it while it does (Miao et al. 2023, Galvatron: 1.13 for both).
inline Seconds exposed_seconds(Seconds communication, Seconds compute, double exposed, double slowdown) {
  const Seconds wanted = communication * std::max(0.0, 1 - exposed);
  const Seconds hidden = std::min(wanted, compute);
  return communication - hidden + hidden * (slowdown - 1);
}

}  // namespace lockstep::cost
