// Health checks of a node that need nothing but its kernel: disks, memory, links. Each takes the root of /proc and
// /sys, so that tests can show it a made-up machine. Those of GPUs are in gpu_state.h, of the kernel log in
// telemetry/kernel_log.h; HealthMonitor (health_monitor.h) runs them all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lockstep/elastic/finding.h"
#include "lockstep/elastic/node_list.h"

namespace lockstep::elastic {

// Before the start what is missing is refused; during a run only what makes the node useless is fatal.
enum class Moment { kBefore, kDuring };

struct WatchedFolder {
  std::string name;  // "the checkpoint folder": begins messages
  std::filesystem::path path;
  double needed_bytes = 0.0;  // with less the run would be in vain; 0: not known
  bool needed = true;         // the run writes there
};

// Free space, and whether a file can be written. A folder that is not there yet counts as the nearest one above it.
std::vector<Finding> look_at_folder(const WatchedFolder& folder, Moment moment);

struct MemoryState {
  double total = 0.0;          // bytes; of the container where it has a limit
  double available = 0.0;      // what is left to take, without what is only cached
  std::int64_t oom_kills = 0;  // processes that the kernel killed for want of memory, in this container or since boot
  bool limited = false;        // by a cgroup
};
MemoryState read_memory(const std::string& root);
// `needed`: what the ranks of this node will take, at first; `held`: what they take now.
std::vector<Finding> judge_memory(const MemoryState* before, const MemoryState& now, double needed, double held);
// Resident bytes of these processes.
double resident_bytes(const std::vector<int>& pids, const std::string& root);

struct LinkState {
  bool there = false;
  bool up = false;            // and with a carrier
  std::int64_t errors = 0;    // packets received or sent with errors, since boot
  std::int64_t failures = 0;  // how often it went down, where the driver counts that
};
using Links = std::map<std::string, LinkState>;  // by name: "eth0", "mlx5_0 port 1"
// `interfaces` and every InfiniBand port of the machine.
Links read_links(const std::vector<std::string>& interfaces, const std::string& root);
// `before` is empty at first. An InfiniBand port that was down from the start is not of interest.
std::vector<Finding> judge_links(const Links& before, const Links& now);

// Other nodes that do not answer within `seconds`; that no agent runs there yet is an answer.
std::vector<Finding> look_at_peers(const NodeList& nodes, double seconds);

}  // namespace lockstep::elastic
