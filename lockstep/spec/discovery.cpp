#include "lockstep/spec/discovery.h"

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/process.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/spec/cluster_reader.h"

namespace lockstep::spec {
namespace {

namespace fs = std::filesystem;

constexpr double kToolSeconds = 20.0;
constexpr std::int64_t kMostCpuRanks = 8;  // more ranks of a small model only wait for each other
constexpr double kPcieBytesPerSecond = 25e9;

std::optional<std::int64_t> number(const std::string& text) {
  std::int64_t value = 0;
  const std::string_view digits = trim(text);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || digits.empty() || (end != digits.data() + digits.size() && *end != ' '))
    return std::nullopt;
  return value;
}

std::optional<std::string> text_of(const fs::path& file) {
  try {
    return std::string(trim(read_file(file, 1u << 16)));
  } catch (const UserError&) {
    return std::nullopt;
  }
}

struct Gpus {
  std::string kind;
  std::int64_t count = 0;
  double memory_bytes = 0;
};

[[noreturn]] void refuse_kind(const std::string& name) {
  throw bad_input(fmt::format("this machine has GPUs of the kind `{}`, which no preset describes", printable(name)),
                  "write a cluster file (docs/reference/cluster-and-model-files.md)");
}

// One GPU per line: "NVIDIA H100 80GB HBM3, 81559".
std::optional<Gpus> gpus_here(const Surroundings& here) {
  const auto listed = here.output_of({"nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"});
  if (!listed) return std::nullopt;
  Gpus gpus;
  for (const std::string& line : split(trim(*listed), '\n')) {
    const std::size_t comma = line.rfind(',');
    if (comma == std::string::npos) continue;
    const std::string name(trim(line.substr(0, comma))), kind = kind_of_gpu(name);
    if (kind.empty()) refuse_kind(name);
    if (!gpus.kind.empty() && gpus.kind != kind) {
      throw bad_input(fmt::format("this machine has GPUs of different kinds, {} and {}", gpus.kind, kind),
                      "choose some with CUDA_VISIBLE_DEVICES, or write a cluster file");
    }
    gpus.kind = kind;
    gpus.count += 1;
    gpus.memory_bytes = static_cast<double>(number(line.substr(comma + 1)).value_or(0)) * 1024 * 1024;
  }
  return gpus.count > 0 ? std::optional(gpus) : std::nullopt;
}

// "Gres=gpu:h100:8(S:0-1)" in what scontrol says of a node.
std::optional<Gpus> gpus_in_gres(const std::string& node) {
  const std::size_t begin = node.find("Gres=gpu");
  if (begin == std::string::npos) return std::nullopt;
  const std::string gres = node.substr(begin + 5, node.find_first_of(" \n(,", begin) - begin - 5);
  const std::vector<std::string> parts = split(gres, ':');
  Gpus gpus;
  gpus.count = number(parts.back()).value_or(0);
  if (parts.size() > 2) gpus.kind = kind_of_gpu(parts[1]);
  if (parts.size() > 2 && gpus.kind.empty()) refuse_kind(parts[1]);
  return gpus.count > 0 ? std::optional(gpus) : std::nullopt;
}

struct Nodes {
  std::int64_t count = 1;
  std::optional<Gpus> gpus;  // of a node, where its allocation tells
};

Nodes find_nodes(const Surroundings& here, std::vector<std::string>& assumed) {
  Nodes nodes;
  const auto job = here.variable("SLURM_JOB_ID");
  const auto slurm = here.variable("SLURM_JOB_NUM_NODES");
  if (job && slurm && number(*slurm)) {
    nodes.count = *number(*slurm);
    assumed.push_back(fmt::format("{} nodes: Slurm job {}", nodes.count, printable(*job)));
    const auto shown =
        here.output_of({"scontrol", "show", "node", "-o", here.variable("SLURMD_NODENAME").value_or("")});
    if (shown) nodes.gpus = gpus_in_gres(*shown);
    if (const auto given = here.variable("SLURM_GPUS_ON_NODE"); given && number(*given)) {
      if (!nodes.gpus) nodes.gpus.emplace();
      nodes.gpus->count = *number(*given);
    }
    return nodes;
  }
  for (const char* name : {"PET_NNODES", "SKYPILOT_NUM_NODES"}) {
    const auto given = here.variable(name);
    if (!given || !number(*given)) continue;
    nodes.count = *number(*given);
    assumed.push_back(fmt::format("{} nodes: {}", nodes.count, name));
    return nodes;
  }
  if (const auto list = here.variable("LOCKSTEP_NODES")) {
    nodes.count = std::count(list->begin(), list->end(), ',') + 1;
    assumed.push_back(fmt::format("{} nodes: LOCKSTEP_NODES", nodes.count));
    return nodes;
  }
  assumed.emplace_back(here.variable("KUBERNETES_SERVICE_HOST")
                           ? "1 node: this pod; nothing names others (LOCKSTEP_NODES or PET_NNODES would)"
                           : "1 node: this machine; nothing names others");
  return nodes;
}

// Whether any two GPUs are connected by NVLink; nullopt: cannot be told.
std::optional<bool> has_nvlink(const Surroundings& here) {
  const auto matrix = here.output_of({"nvidia-smi", "topo", "-m"});
  if (!matrix) return std::nullopt;
  for (const std::string& line : split(*matrix, '\n')) {
    if (line.rfind("GPU", 0) == 0 && line.find("\tNV") != std::string::npos) return true;
  }
  return false;
}

struct Network {
  Link link;
  std::int64_t ports = 0;
};

// Active ports of InfiniBand devices: "400 Gb/sec (4X NDR)".
Network infiniband(const Surroundings& here) {
  Network network;
  std::error_code ignored;
  for (const auto& device : fs::directory_iterator(fs::path(here.root) / "sys/class/infiniband", ignored)) {
    for (const auto& port : fs::directory_iterator(device.path() / "ports", ignored)) {
      const auto state = text_of(port.path() / "state"), rate = text_of(port.path() / "rate");
      if (!state || state->find("ACTIVE") == std::string::npos || !rate || !number(*rate)) continue;
      const bool over_ethernet = text_of(port.path() / "link_layer").value_or("") == "Ethernet";
      network.link.kind = over_ethernet ? LinkKind::kRoce : LinkKind::kInfiniband;
      network.link.bytes_per_second =
          std::max(network.link.bytes_per_second, static_cast<double>(*number(*rate)) * 1e9 / 8);
      network.ports += 1;
    }
  }
  return network;
}

// The fastest interface that has a device behind it: Mb/s.
Network ethernet(const Surroundings& here) {
  Network network;
  network.link.kind = LinkKind::kEthernet;
  std::error_code ignored;
  for (const auto& interface : fs::directory_iterator(fs::path(here.root) / "sys/class/net", ignored)) {
    const auto speed = text_of(interface.path() / "speed");
    if (!fs::exists(interface.path() / "device", ignored) || !speed || number(*speed).value_or(0) <= 0) continue;
    const double bytes = static_cast<double>(*number(*speed)) * 1e6 / 8;
    if (bytes <= network.link.bytes_per_second) continue;
    network.link.bytes_per_second = bytes;
    network.ports = 1;
  }
  return network;
}

void find_links(const Surroundings& here, NodeGroup& group, std::vector<std::string>& assumed) {
  if (const auto nvlink = has_nvlink(here); nvlink && !*nvlink && group.intra.kind == LinkKind::kNvlink) {
    group.intra.kind = LinkKind::kPcie;
    group.intra.bytes_per_second = kPcieBytesPerSecond;
    assumed.emplace_back("between GPUs: PCIe (nvidia-smi topo), 25 GB/s assumed");
  } else {
    assumed.push_back(fmt::format("between GPUs: {} of a usual {}{}", to_string(group.intra.kind), group.device.kind,
                                  nvlink ? ", as nvidia-smi topo shows" : "; nvidia-smi topo says nothing"));
  }
  Network network = infiniband(here);
  if (network.ports == 0) network = ethernet(here);
  if (network.ports == 0) {
    assumed.push_back(fmt::format("between nodes: the {} of a usual {} node; no interface tells its speed",
                                  to_string(group.nic.kind), group.device.kind));
    return;
  }
  const bool same = group.nic.kind == network.link.kind;
  group.nic.kind = network.link.kind;
  group.nic.bytes_per_second = network.link.bytes_per_second;
  if (!same && network.link.kind == LinkKind::kEthernet)
    group.nic.latency_seconds = std::max(group.nic.latency_seconds, 20e-6);
  group.nics_per_node = network.ports;
  assumed.push_back(fmt::format("between nodes: {} x {:.0f} Gb/s {} (/sys/class)", network.ports,
                                network.link.bytes_per_second * 8 / 1e9, to_string(network.link.kind)));
}

Cluster cluster_of(const std::string& kind, std::int64_t nodes, std::int64_t devices) {
  Cluster cluster = load_cluster(fmt::format("{}x{}x{}", nodes, devices, kind));
  cluster.name = kDiscoveredName + cluster.name;
  return cluster;
}

}  // namespace

std::string kind_of_gpu(const std::string& product_name) {
  const std::string name = to_lower(product_name);
  const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
  // Longer names first: "gb200" holds "b200", "l40s" holds "l4".
  if (has("a100")) return has("40gb") ? "A100-40" : "A100";
  if (has("v100")) return has("16gb") ? "V100-16" : "V100";
  if (has("h100")) return has("pcie") ? "H100-PCIe" : "H100";
  if (has("rtx 4090") || has("rtx4090")) return "RTX4090";
  for (const char* kind :
       {"GB300", "GB200", "B300", "B200", "H200", "H800", "L40S", "A10G", "MI325X", "MI300X", "MI250X"}) {
    if (has(to_lower(kind).c_str())) return kind;
  }
  return has("l4") && !has("l40") ? "L4" : "";
}

Surroundings this_machine() {
  Surroundings here;
  here.variable = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value == nullptr || *value == '\0' ? std::nullopt : std::optional<std::string>(value);
  };
  here.output_of = [](const std::vector<std::string>& argv) -> std::optional<std::string> {
    try {
      SpawnOptions options;
      options.argv = argv;
      const CommandResult result = run_command(options, kToolSeconds);
      return result.status.ok() && !result.timed_out ? std::optional(result.output) : std::nullopt;
    } catch (const UserError&) {
      return std::nullopt;
    }
  };
  cpu_set_t allowed;
  here.cores = sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : 1;
  return here;
}

Discovered discover_cluster(const Surroundings& here) {
  Discovered found;
  const Nodes nodes = find_nodes(here, found.assumptions);
  const std::optional<Gpus> seen = gpus_here(here);
  if (seen && nodes.gpus && nodes.gpus->count != seen->count && nodes.gpus->count > 0) {
    found.assumptions.push_back(
        fmt::format("nvidia-smi shows {} GPUs and the allocation has {}: those count", seen->count, nodes.gpus->count));
  }
  if (seen || (nodes.gpus && !nodes.gpus->kind.empty())) {
    const std::string kind = seen ? seen->kind : nodes.gpus->kind;
    const std::int64_t count = nodes.gpus && nodes.gpus->count > 0 ? nodes.gpus->count : seen->count;
    found.cluster = cluster_of(kind, nodes.count, count);
    NodeGroup& group = found.cluster.groups.front();
    found.assumptions.push_back(fmt::format("{} {} per node: {}{}", count, kind, seen ? "nvidia-smi" : "Slurm's gres",
                                            nodes.count > 1 ? ", the other nodes alike" : ""));
    if (seen && seen->memory_bytes > 0)
      group.device.memory_bytes = std::min(group.device.memory_bytes, seen->memory_bytes);
    find_links(here, group, found.assumptions);
    found.assumptions.emplace_back("storage, price and failures: usual for this kind; a cluster file says better");
    return found;
  }
  if (nodes.gpus) {
    throw bad_input(fmt::format("the allocation has {} GPUs per node and nothing tells their kind", nodes.gpus->count),
                    fmt::format("write it: cluster={}x{}xH100", nodes.count, nodes.gpus->count));
  }
  const std::int64_t ranks = std::clamp<std::int64_t>(here.cores, 1, kMostCpuRanks);
  found.cluster = cluster_of("cpu", nodes.count, ranks);
  found.assumptions.push_back(
      fmt::format("{} ranks per node on the CPU: no GPU is here, {} cores are", ranks, here.cores));
  return found;
}

}  // namespace lockstep::spec
