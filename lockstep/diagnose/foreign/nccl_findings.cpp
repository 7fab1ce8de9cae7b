#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "lockstep/base/text.h"
#include "lockstep/diagnose/foreign/nccl_log.h"
#include "lockstep/diagnose/foreign/trace_findings.h"

namespace lockstep::diagnose {
namespace {

bool has(std::string_view text, std::string_view piece) { return text.find(piece) != std::string_view::npos; }

// What a log alone cannot tell is how much of a step is communication: costs of slow ways are of the time of
// collectives. Shares of it that are lost, at least, by what such links reach in all-reduce
// (docs/reference/diagnose.md).
constexpr double kSocketsPercent = 75.0;                // TCP against RDMA over the same network
constexpr double kStagedPercent = 30.0;                 // network through the memory of the host
constexpr double kSharedPercent = 60.0;                 // GPUs of a node through the memory of the host, against NVLink
constexpr double kAdapterBytesPerSecond = 100e9 / 8.0;  // the least that adapters of GPU nodes have
constexpr double kAttainable = 0.8;                     // of their sum
constexpr double kSlowShare = 0.5;                      // of their sum: less is a fault

std::size_t nodes_of(const NcclLog& log) {
  std::set<std::string> nodes;
  for (const auto& [rank, host] : log.hosts) nodes.insert(host);
  return nodes.size();
}

bool is_set(const NcclLog& log, std::string_view setting) {
  return std::ranges::any_of(log.settings, [&](const std::string& one) { return one.starts_with(setting); });
}

Finding slow(double cost, double confidence, std::string evidence, std::string fix) {
  Finding finding;
  finding.cause = Cause::kSlowLink;
  finding.cost_percent = cost;
  finding.confidence = confidence;
  finding.evidence = std::move(evidence);
  finding.fix = std::move(fix);
  return finding;
}

// The first error is the cause; that others lost their connection to it follows from it.
const NcclProblem& first_cause(const std::vector<NcclProblem>& problems) {
  constexpr std::array<std::string_view, 6> kFollows = {"remote",    "Remote",           "Connection closed",
                                                        "closed by", "Connection reset", "Broken pipe"};
  for (const NcclProblem& problem : problems) {
    const bool follows =
        std::ranges::any_of(kFollows, [&](std::string_view piece) { return has(problem.text, piece); });
    if (!follows) return problem;
  }
  return problems.front();
}

std::string error_fix(const std::string& text) {
  if (has(text, "ibv_") || has(text, "NET/IB") || has(text, "status=12")) {
    return "test the fabric between these nodes (ib_write_bw, ibstat, switch port counters); on rail-only fabrics "
           "NCCL_CROSS_NIC=0, on RoCE the right NCCL_IB_GID_INDEX";
  }
  if (has(text, "out of memory")) return "leave memory for NCCL's buffers: a smaller batch, or a smaller NCCL_BUFFSIZE";
  if (has(text, "Cuda failure") || has(text, "cuda error")) {
    return "look at the first CUDA error of that rank (CUDA_LAUNCH_BLOCKING=1, kernel log for Xid)";
  }
  if (has(text, "onnect") || has(text, "ocket")) {
    return "let the nodes reach each other: NCCL_SOCKET_IFNAME names the interface, the firewall must let its ports "
           "through";
  }
  return "look at what rank and host printed just before this line";
}

void add_errors(const NcclLog& log, std::vector<Finding>& found) {
  if (log.problems.empty()) return;
  const NcclProblem& cause = first_cause(log.problems);
  const bool hardware =
      has(cause.text, "ECC") || has(cause.text, "uncorrectable") || has(cause.text, "fallen off the bus");
  Finding finding;
  finding.cause = hardware                                  ? Cause::kHardwareError
                  : log.hung && has(cause.text, "Watchdog") ? Cause::kHang
                                                            : Cause::kCrash;
  finding.cost_percent = 100.0;
  finding.confidence = 0.85;
  if (cause.rank >= 0) finding.ranks = {cause.rank};
  const std::string where =
      cause.host.empty() ? "" : fmt::format("{}, GPU {}: ", printable(cause.host, 60), cause.device);
  finding.evidence = fmt::format("{}{} ({} such lines)", where, cause.text, log.problems.size());
  finding.fix = error_fix(cause.text);
  found.push_back(std::move(finding));
}

void add_versions(const NcclLog& log, std::vector<Finding>& found) {
  if (log.versions.size() < 2) return;
  Finding finding;
  finding.cause = Cause::kCrash;
  finding.cost_percent = 100.0;
  finding.confidence = 0.7;
  finding.evidence = "ranks run different versions of NCCL: " + join({log.versions.begin(), log.versions.end()}, ", ");
  finding.fix = "install one version on all nodes: different ones fail to connect, or hang";
  found.push_back(std::move(finding));
}

// The best result, as a large message reaches it.
double measured_bandwidth(const NcclLog& log) {
  return log.bus_bandwidths.empty() ? 0.0 : *std::ranges::max_element(log.bus_bandwidths);
}

std::string measured_text(const NcclLog& log) {
  const double measured = measured_bandwidth(log);
  return measured > 0.0
             ? fmt::format("; measured bus bandwidth {:.2f} GB/s ({:.2f} Gb/s)", measured / 1e9, 8.0 * measured / 1e9)
             : "";
}

void add_between_nodes(const NcclLog& log, std::vector<Finding>& found) {
  if (log.between_sockets > 0 && nodes_of(log) > 1) {
    const bool disabled = is_set(log, "NCCL_IB_DISABLE=1"), present = !log.adapters.empty();
    found.push_back(slow(kSocketsPercent, disabled || present ? 0.9 : 0.7,
                         fmt::format("{} connections between nodes go over TCP sockets{}{}", log.between_sockets,
                                     disabled  ? ": NCCL_IB_DISABLE=1 is set"
                                     : present ? fmt::format(", though there are {} RDMA adapters", log.adapters.size())
                                               : ": NCCL found no RDMA adapter",
                                     measured_text(log)),
                         disabled
                             ? "unset NCCL_IB_DISABLE"
                             : "install the adapters' user-space driver (libibverbs, rdma-core) in the image and pass "
                               "/dev/infiniband in; on a cloud the provider's network plugin (libnccl-net.so)"));
    return;
  }
  const double nominal = static_cast<double>(log.adapters.size()) * kAdapterBytesPerSecond;
  const double measured = measured_bandwidth(log);
  // Adapters of Omni-Path do not read GPU memory through verbs: nothing is wrong with the settings then.
  const bool omni_path =
      std::ranges::any_of(log.adapters, [](const std::string& name) { return name.starts_with("hfi"); });
  const bool staged = log.between_staged > 0 && log.between_direct == 0;
  if (nodes_of(log) > 1 && nominal > 0.0 && measured > 0.0 && measured < kSlowShare * nominal) {
    found.push_back(slow(100.0 * (1.0 - measured / (kAttainable * nominal)), 0.8,
                         fmt::format("all-reduce over {} nodes reaches {:.2f} GB/s ({:.2f} Gb/s), {:.0f}% of what {} "
                                     "adapters of 100 Gb/s carry; {} of them are "
                                     "used{}",
                                     nodes_of(log), measured / 1e9, 8.0 * measured / 1e9, 100.0 * measured / nominal,
                                     log.adapters.size(), log.adapters_used.size(),
                                     staged ? ", through the memory of the host (no GPUDirect RDMA)" : ""),
                         staged ? "load nvidia-peermem (or use dma-buf, or the fabric's NCCL plugin) so that adapters "
                                  "read GPU memory; more channels (NCCL_MIN_NCHANNELS=8)"
                                : "test each adapter alone (ib_write_bw), use all of them (NCCL_IB_HCA), more channels "
                                  "(NCCL_MIN_NCHANNELS=8)"));
  } else if (nodes_of(log) > 1 && staged && !omni_path) {
    found.push_back(
        slow(kStagedPercent, 0.6,
             fmt::format("{} connections between nodes go through the memory of the host: no GPUDirect RDMA{}",
                         log.between_staged, measured_text(log)),
             "load nvidia-peermem (modprobe nvidia-peermem) or use dma-buf (a kernel from 5.12 on), switch off ACS; "
             "NCCL_NET_GDR_LEVEL=SYS where GPU and "
             "adapter are far from each other"));
  }
}

void add_within_nodes(const NcclLog& log, std::vector<Finding>& found) {
  if (log.within_shared == 0 || log.within_p2p > log.within_shared) return;
  const bool disabled = is_set(log, "NCCL_P2P_DISABLE=1");
  found.push_back(
      slow(kSharedPercent, disabled ? 0.95 : 0.6,
           fmt::format("{} of {} connections inside nodes go through the memory of the host, not from GPU to GPU{}",
                       log.within_shared, log.within_shared + log.within_p2p,
                       disabled ? ": NCCL_P2P_DISABLE=1 is set" : measured_text(log)),
           disabled ? "unset NCCL_P2P_DISABLE"
                    : "see nvidia-smi topo -m and topo -p2p r; switch off ACS and the IOMMU of the BIOS, give "
                      "containers --ipc=host"));
}

// A ring enters and leaves each node once; more is a detour over the network.
void add_rings(const NcclLog& log, std::vector<Finding>& found) {
  const std::size_t nodes = nodes_of(log);
  if (nodes < 2) return;
  std::size_t most = 0;
  for (const std::vector<int>& ring : log.rings) {
    if (ring.size() != log.hosts.size()) continue;
    std::size_t crossings = 0;
    for (std::size_t i = 0; i < ring.size(); ++i) {
      const auto from = log.hosts.find(ring[i]), to = log.hosts.find(ring[(i + 1) % ring.size()]);
      if (from == log.hosts.end() || to == log.hosts.end()) return;
      crossings += from->second != to->second ? 1 : 0;
    }
    most = std::max(most, crossings);
  }
  if (most <= nodes) return;
  Finding finding;
  finding.cause = Cause::kWrongPlacement;
  finding.cost_percent = 100.0 * (1.0 - static_cast<double>(nodes) / static_cast<double>(most));
  finding.confidence = 0.8;
  finding.evidence = fmt::format("a ring over {} ranks crosses between nodes {} times; {} nodes need {}",
                                 log.hosts.size(), most, nodes, nodes);
  finding.fix = "give neighbouring ranks to one node (srun --distribution=block, mpirun --map-by slot)";
  found.push_back(std::move(finding));
}

}  // namespace

std::vector<Finding> nccl_findings(const NcclLog& log) {
  std::vector<Finding> found;
  add_errors(log, found);
  add_versions(log, found);
  add_between_nodes(log, found);
  add_within_nodes(log, found);
  add_rings(log, found);
  return found;
}

}  // namespace lockstep::diagnose
