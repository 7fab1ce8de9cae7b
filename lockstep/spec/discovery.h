// `cluster: auto`: the Cluster this process is on, as far as it can be seen from here.
//
// Nodes: a Slurm allocation, the list of nodes of a launcher, else this machine alone. Devices: nvidia-smi, else the
// allocation's gres, else this machine's processors. Links: `nvidia-smi topo -m`, /sys/class/infiniband,
// /sys/class/net. What cannot be seen (storage, prices, failures, latencies) is the device kind's usual figure.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/spec/cluster.h"

namespace lockstep::spec {

struct Discovered {
  Cluster cluster;                       // its name begins with kDiscoveredName
  std::vector<std::string> assumptions;  // one line each: what was seen where, and what was only assumed
};
inline constexpr const char* kDiscoveredName = "auto:";

// What is looked at; tests show it a made-up machine.
struct Surroundings {
  std::function<std::optional<std::string>(const std::string& name)> variable;
  // What a program prints; nullopt when it is not there or fails.
  std::function<std::optional<std::string>(const std::vector<std::string>& argv)> output_of;
  std::string root = "/";  // of /sys
  int cores = 1;
};
Surroundings this_machine();

// Throws UserError for GPUs of a kind that no preset describes, and for nodes that hold different numbers of them.
Discovered discover_cluster(const Surroundings& surroundings = this_machine());

// The preset for a GPU as its driver names it ("NVIDIA A100-SXM4-40GB" -> "A100-40"); "" when there is none.
std::string kind_of_gpu(const std::string& product_name);

}  // namespace lockstep::spec
