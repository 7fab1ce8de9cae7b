// Cluster of a published row: the preset of its hardware, with the memory its name states and the links of the
// interconnect column.
#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <map>
#include <numeric>
#include <optional>

#include <fmt/format.h>

#include "lockstep/planner/rows/parts.h"

namespace lockstep::planner {
namespace {

constexpr double kGib = 1024.0 * 1024.0 * 1024.0;
constexpr double kGigabit = 1e9 / 8;

struct HardwareRule {
  const char* prefix;  // of the hardware column
  const char* preset;
};
// First match wins: longer names before their prefixes.
constexpr std::array kRules{
    HardwareRule{"GB300", "GB300"},
    HardwareRule{"GB200", "GB200"},
    HardwareRule{"B300", "B300"},
    HardwareRule{"B200", "B200"},
    HardwareRule{"H200", "H200"},
    HardwareRule{"H100-PCIe", "H100-PCIe"},
    HardwareRule{"H100", "H100"},
    HardwareRule{"H800", "H800"},
    HardwareRule{"A100-SXM-40GB", "A100-40"},
    HardwareRule{"A100", "A100"},
    HardwareRule{"V100-SXM2-16GB", "V100-16"},
    HardwareRule{"V100", "V100"},
    HardwareRule{"A10G", "A10G"},
    HardwareRule{"L40S", "L40S"},
    HardwareRule{"L4", "L4"},
    HardwareRule{"MI250X", "MI250X"},
    HardwareRule{"MI300X", "MI300X"},
    HardwareRule{"MI325X", "MI325X"},
    HardwareRule{"RTX4090", "RTX4090"},
};

// GPUs that share one NVLink switch, not one operating system.
constexpr std::int64_t kNvlDomain = 72;

const HardwareRule& find_rule(const std::string& hardware) {
  for (const HardwareRule& rule : kRules) {
    if (hardware.starts_with(rule.prefix)) return rule;
  }
  throw CannotPrice{hardware.empty() ? std::string("hardware unknown")
                                     : fmt::format("no preset for hardware {}", hardware)};
}

// Parsed once per kind: a file has thousands of rows of a few kinds.
spec::NodeGroup preset_group(const char* preset) {
  static const std::map<std::string, spec::NodeGroup> groups = [] {
    std::map<std::string, spec::NodeGroup> all;
    for (const HardwareRule& rule : kRules) all[rule.preset] = spec::load_cluster(rule.preset).groups.at(0);
    return all;
  }();
  return groups.at(preset);
}

// "80" of "A100-SXM-80GB": the number that ends at "GB".
std::optional<double> stated_memory_gib(const std::string& hardware) {
  const std::size_t end = hardware.rfind("GB");
  if (end == std::string::npos || end == 0) return std::nullopt;
  std::size_t begin = end;
  while (begin > 0 && std::isdigit(static_cast<unsigned char>(hardware[begin - 1]))) --begin;
  double value = 0;
  const auto [stop, error] = std::from_chars(hardware.data() + begin, hardware.data() + end, value);
  if (error != std::errc() || stop != hardware.data() + end || value < 1) return std::nullopt;
  return value;
}

// Presets have what the driver reports, which is up to a tenth less than the name says; a name that says something else
// is another variant.
void apply_memory(spec::Device& device, const std::string& hardware, RowNotes& notes) {
  const auto gib = stated_memory_gib(hardware);
  if (!gib || std::abs(*gib * kGib / device.memory_bytes - 1) < 0.12) return;
  device.memory_bytes = *gib * kGib;
  notes.add(fmt::format("{} GiB of memory, as the name says", *gib));
}

// The number in front of `unit`, with digits and a dot only: "100" of "Omni-Path 100Gb/s".
std::optional<double> number_before(const std::string& text, const std::string& unit) {
  std::size_t end = text.find(unit);
  if (end == std::string::npos) return std::nullopt;
  while (end > 0 && text[end - 1] == ' ') --end;
  std::size_t begin = end;
  while (begin > 0 && (std::isdigit(static_cast<unsigned char>(text[begin - 1])) || text[begin - 1] == '.')) --begin;
  double value = 0;
  const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, value);
  if (error != std::errc() || stop != text.data() + end || value <= 0) return std::nullopt;
  return value;
}

void set_nics(spec::NodeGroup& group, std::int64_t nics, double gigabits) {
  group.nics_per_node = nics;
  group.nic.bytes_per_second = gigabits * kGigabit;
}

// What the published column says about the fabric between nodes; what it does not say stays as the preset has it.
void apply_fabric(spec::NodeGroup& group, const std::string& interconnect) {
  if (contains(interconnect, "RoCE")) group.nic.kind = spec::LinkKind::kRoce;
  if (const auto per_node = number_before(interconnect, "Gbps/node")) {
    set_nics(group, 8, *per_node / 8);
  } else if (const auto per_gpu = number_before(interconnect, "Gbps per GPU")) {
    set_nics(group, group.devices_per_node, *per_gpu);
  } else if (const auto per_host = number_before(interconnect, "Tb/s RoCE (per host)")) {
    set_nics(group, 8, *per_host * 1000 / 8);
  } else if (const auto per_port = number_before(interconnect, "Gb/s")) {
    const auto ports = number_before(interconnect, "x Omni-Path");
    set_nics(group, ports ? static_cast<std::int64_t>(*ports) : 8, *per_port);
  } else if (contains(interconnect, "HDR")) {
    set_nics(group, 8, 200);
  }
}

void apply_nvlink(spec::NodeGroup& group, const PublishedRow& row, RowNotes& notes) {
  // Jean Zay's A100 nodes: the authors give four NVLink connections between GPUs, 25 GB/s each way.
  if (row.hardware.starts_with("A100") && contains(row.interconnect, "Omni-Path")) {
    group.intra.bytes_per_second = 4 * 25e9;
    notes.add("four NVLink connections per GPU: 100 GB/s each way");
  }
}

std::int64_t devices_per_node(const PublishedRow& row, const spec::NodeGroup& preset, std::int64_t gpus,
                              RowNotes& notes) {
  if (preset.devices_per_node < kNvlDomain) {
    return std::min(gpus, row.gpus_per_node.value_or(preset.devices_per_node));
  }
  // A rack of 72 GPUs is one NVLink domain; jobs take equal parts of each.
  for (std::int64_t size = std::min(gpus, kNvlDomain); size > 4; --size) {
    if (gpus % size != 0) continue;
    if (size != row.gpus_per_node.value_or(size)) notes.add(fmt::format("NVLink domains of {} GPUs", size));
    return size;
  }
  return std::min<std::int64_t>(gpus, 4);
}

}  // namespace

RowHardware hardware_of(const PublishedRow& row, RowNotes& notes) {
  const HardwareRule& rule = find_rule(row.hardware);
  if (!row.gpus) throw CannotPrice{"the number of GPUs is unknown"};
  spec::NodeGroup group = preset_group(rule.preset);
  const std::int64_t per_node = devices_per_node(row, group, *row.gpus, notes);
  // Presets have a NIC per so many GPUs; smaller nodes keep that share unless the row says otherwise.
  group.nics_per_node = std::max<std::int64_t>(1, group.nics_per_node * per_node / group.devices_per_node);
  group.devices_per_node = per_node;
  group.nodes = (*row.gpus + per_node - 1) / per_node;
  apply_memory(group.device, row.hardware, notes);
  if (row.precision == "tf32") {
    // Tensor cores that have TF32 run it at half the rate of bf16 (NVIDIA A100 and H100 datasheets).
    group.device.peak_fp32_flops = group.device.peak_bf16_flops / 2;
    notes.add("tf32: fp32 at half the bf16 peak");
  }
  apply_fabric(group, row.interconnect);
  apply_nvlink(group, row, notes);

  RowHardware hardware;
  hardware.device_kind = group.device.kind;
  hardware.cluster.name = fmt::format("{}x{}x{}", group.nodes, group.devices_per_node, group.device.kind);
  hardware.cluster.groups.push_back(std::move(group));
  return hardware;
}

}  // namespace lockstep::planner
