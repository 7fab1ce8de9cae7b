#include "lockstep/planner/resize.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep::planner {
namespace {

constexpr double kTunedOverPlainEcmp = 1.4;

void scale_storage(spec::Storage& storage, double factor) {
  storage.read_bytes_per_second *= factor;
  storage.write_bytes_per_second *= factor;
}

std::int64_t nodes_of(const spec::Cluster& cluster) {
  std::int64_t nodes = 0;
  for (const spec::NodeGroup& group : cluster.groups) nodes += group.nodes;
  return nodes;
}

}  // namespace

std::int64_t add_devices(spec::Cluster& cluster, std::int64_t devices) {
  spec::NodeGroup& group = cluster.groups.front();
  const std::int64_t added = (devices + group.devices_per_node - 1) / group.devices_per_node;
  const double before = static_cast<double>(nodes_of(cluster));
  group.nodes += added;
  scale_storage(cluster.storage, static_cast<double>(nodes_of(cluster)) / before);
  return added * group.devices_per_node;
}

spec::Cluster resized(const spec::Cluster& cluster, std::int64_t devices) {
  if (cluster.groups.size() != 1) {
    throw bad_input(fmt::format("{} has {} node groups and no one size", cluster.name, cluster.groups.size()),
                    "scale a cluster of one kind of node");
  }
  spec::Cluster result = cluster;
  spec::NodeGroup& group = result.groups.front();
  const std::int64_t usual = group.devices_per_node;
  if (devices < 1 || (devices > usual && devices % usual != 0)) {
    throw bad_input(fmt::format("{} devices are not a whole number of nodes of {}", devices, usual),
                    fmt::format("use multiples of {}, or less than a node", usual));
  }
  const double before = static_cast<double>(group.nodes);
  group.nodes = std::max<std::int64_t>(1, devices / usual);
  if (devices < usual) {
    const double share = static_cast<double>(devices) / static_cast<double>(usual);
    group.devices_per_node = devices;
    group.nics_per_node = std::max<std::int64_t>(1, std::llround(static_cast<double>(group.nics_per_node) * share));
    group.failures_per_1000_node_days *= share;
    group.host_memory_bytes = std::floor(group.host_memory_bytes * share);
  }
  scale_storage(result.storage, static_cast<double>(group.nodes) / before);
  result.name = fmt::format("{}x{}x{}", group.nodes, group.devices_per_node, group.device.kind);
  return result;
}

spec::Link with_other_protocol(spec::Link link) {
  if (link.kind == spec::LinkKind::kInfiniband) {
    link.kind = spec::LinkKind::kRoce;
    link.bytes_per_second /= kTunedOverPlainEcmp;
  } else if (link.kind == spec::LinkKind::kRoce) {
    link.kind = spec::LinkKind::kInfiniband;
    link.bytes_per_second *= kTunedOverPlainEcmp;
  }
  return link;
}

}  // namespace lockstep::planner
