// Cluster: where a Model is trained. Node groups may differ; units are in the names.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"

namespace lockstep::spec {

// One accelerator (or, for kind "cpu", one rank's share of a machine).
struct Device {
  std::string kind;  // "H100", "cpu", ...
  double memory_bytes = 0;
  double memory_bytes_per_second = 0;
  double peak_bf16_flops = 0;  // dense; V100: fp16, it has no bf16. 0 for cpu: see Profile
  double peak_fp32_flops = 0;  // without tensor cores' reduced precision
  double peak_fp8_flops = 0;   // 0: none
  // The most that any matrix product in bf16 was measured to reach; 0: unknown, the peak is all that bounds it.
  double reached_bf16_flops = 0;
  bool is_cpu() const { return kind == "cpu"; }
  bool has_bf16() const { return !kind.starts_with("V100"); }  // Volta's tensor cores know fp16 alone
  bool operator==(const Device&) const = default;
};

enum class LinkKind { kNvlink, kPcie, kXgmi, kSharedMemory, kInfiniband, kRoce, kEthernet };
constexpr auto names_of(LinkKind) {
  return enum_names<LinkKind::kEthernet>("nvlink", "pcie", "xgmi", "shared_memory", "infiniband", "roce", "ethernet");
}
using lockstep::to_string;

// Bandwidth is per device (intra-node) or per NIC (inter-node), one direction.
struct Link {
  LinkKind kind = LinkKind::kPcie;
  double bytes_per_second = 0;
  double latency_seconds = 0;
  bool operator==(const Link&) const = default;
};

struct NodeGroup {
  std::string name;
  std::int64_t nodes = 1;
  std::int64_t devices_per_node = 1;
  Device device;
  Link intra;  // between devices of a node
  Link nic;    // one NIC
  std::int64_t nics_per_node = 1;
  double host_memory_bytes = 0;  // of a node; 0: unknown
  double price_per_device_hour_usd = 0;
  double failures_per_1000_node_days = 0;
  bool operator==(const NodeGroup&) const = default;
};

struct Storage {
  double read_bytes_per_second = 0;  // of the whole cluster
  double write_bytes_per_second = 0;
  bool operator==(const Storage&) const = default;
};

struct Cluster {
  std::string name;  // "4x8xH100", preset name or file stem
  std::vector<NodeGroup> groups;
  Link between_groups;  // used when there is more than one group
  Storage storage;

  std::int64_t devices() const {
    std::int64_t total = 0;
    for (const NodeGroup& group : groups) total += group.nodes * group.devices_per_node;
    return total;
  }
  // Whether ranks train on processors: every node is of kind cpu.
  bool is_cpu() const {
    return !groups.empty() &&
           std::all_of(groups.begin(), groups.end(), [](const NodeGroup& group) { return group.device.is_cpu(); });
  }
  bool operator==(const Cluster&) const = default;
};

// `name` is NODESxGPUSxKIND ("4x8xH100", "1x4xcpu"), a kind ("H100": one usual node of it) or a YAML file.
// For kind cpu the memory of this machine is split evenly over the ranks of a node and all speeds are 0: they are
// measured (`lockstep calibrate`), not guessed. Throws UserError.
Cluster load_cluster(const std::string& name);

// The cluster as a YAML map that reads back to the same value.
std::string to_yaml(const Cluster& cluster, int indent = 0);

std::vector<std::string> device_kind_names();

}  // namespace lockstep::spec
