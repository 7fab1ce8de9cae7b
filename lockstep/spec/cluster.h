// Cluster: where a Model is trained. Node groups may differ; units are in the names.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::spec {

// One accelerator (or, for kind "cpu", one rank's share of a machine).
struct Device {
  std::string kind;                           // "H100", "cpu", ...
  double memory_bytes = 0;
  double memory_bytes_per_second = 0;
  double peak_bf16_flops = 0;                 // dense
  double peak_fp32_flops = 0;                 // without tensor cores' reduced precision
  double peak_fp8_flops = 0;                  // 0: none
  bool is_cpu() const { return kind == "cpu"; }
};

enum class LinkKind { kNvlink, kPcie, kXgmi, kSharedMemory, kInfiniband, kRoce, kEthernet };

// Bandwidth is per device (intra-node) or per NIC (inter-node), one direction.
struct Link {
  LinkKind kind = LinkKind::kPcie;
  double bytes_per_second = 0;
  double latency_seconds = 0;
};

struct NodeGroup {
  std::string name;
  std::int64_t nodes = 1;
  std::int64_t devices_per_node = 1;
  Device device;
  Link intra;                       // between devices of a node
  Link nic;                         // one NIC
  std::int64_t nics_per_node = 1;
  double price_per_device_hour_usd = 0;
  double failures_per_1000_node_days = 0;
};

struct Storage {
  double read_bytes_per_second = 0;   // of the whole cluster
  double write_bytes_per_second = 0;
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
};

// `name` is NODESxGPUSxKIND ("4x8xH100", "1x4xcpu"), a preset or a YAML file. Throws UserError.
Cluster load_cluster(const std::string& name);

std::vector<std::string> device_kind_names();
const char* to_string(LinkKind kind);

}  // namespace lockstep::spec
