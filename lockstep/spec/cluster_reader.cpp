#include "lockstep/spec/cluster_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <tuple>

#include "lockstep/base/file.h"
#include "lockstep/base/map_reader.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/spec/discovery.h"
#include "lockstep/spec/machine.h"
#include "lockstep/spec/presets.h"

namespace lockstep::spec {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kMostNodes = 1'000'000;
constexpr std::int64_t kMostDevicesPerNode = 4096;

// Keeps every product and sum of figures finite; no real machine comes close.
constexpr double kMostOfAnything = 1e24;
constexpr double kMostLatencySeconds = 3600;

// A figure that others are divided by. Only the speeds of a cpu may be 0: they are measured, not written.
void check_figure(const MapReader& map, const char* key, double value, bool may_be_zero) {
  if ((value > 0 || (value == 0 && may_be_zero)) && value <= kMostOfAnything) return;
  throw map.error_at(key,
                     fmt::format("`{}` is {}", map.full_key(key), value == 0 ? "0 or missing" : "impossibly large"),
                     "write the figure of the datasheet");
}

void read_device(MapReader& parent, Device& device, bool known_kind) {
  auto map = parent.map("device");
  if (!map) {
    if (!known_kind) parent.require("device");
    return;
  }
  if (!known_kind) {
    for (const char* key : {"memory", "memory_bandwidth", "peak_bf16"}) map->require(key);
  }
  map->bytes("memory", device.memory_bytes);
  map->bytes_per_second("memory_bandwidth", device.memory_bytes_per_second);
  map->flops_per_second("peak_bf16", device.peak_bf16_flops);
  map->flops_per_second("peak_fp32", device.peak_fp32_flops);
  map->flops_per_second("peak_fp8", device.peak_fp8_flops);
  map->flops_per_second("reached_bf16", device.reached_bf16_flops);
  map->finish();
  check_figure(*map, "memory", device.memory_bytes, false);
  check_figure(*map, "memory_bandwidth", device.memory_bytes_per_second, device.is_cpu());
  check_figure(*map, "peak_bf16", device.peak_bf16_flops, device.is_cpu());
  check_figure(*map, "peak_fp32", device.peak_fp32_flops, true);
  check_figure(*map, "peak_fp8", device.peak_fp8_flops, true);
  if (device.reached_bf16_flops > device.peak_bf16_flops) {
    if (map->find("reached_bf16") == nullptr)
      return void(device.reached_bf16_flops = 0);  // the kind's, of another peak
    throw map->error_at("reached_bf16", fmt::format("`{}` is above the peak", map->full_key("reached_bf16")),
                        "write what a product was measured to reach, or leave it out");
  }
}

bool read_link(MapReader& parent, const std::string& key, Link& link, bool may_be_zero) {
  auto map = parent.map(key);
  if (!map) return false;
  map->choice("kind", link.kind);
  map->bytes_per_second("bandwidth", link.bytes_per_second);
  map->seconds("latency", link.latency_seconds);
  map->finish();
  check_figure(*map, "bandwidth", link.bytes_per_second, may_be_zero);
  if (link.latency_seconds > kMostLatencySeconds) {
    throw map->error_at("latency", fmt::format("`{}` is more than an hour", map->full_key("latency")),
                        "write it in us or ms");
  }
  return true;
}

bool read_storage(MapReader& parent, const std::string& key, Storage& storage) {
  auto map = parent.map(key);
  if (!map) return false;
  map->bytes_per_second("read", storage.read_bytes_per_second);
  map->bytes_per_second("write", storage.write_bytes_per_second);
  map->finish();
  check_figure(*map, "read", storage.read_bytes_per_second, true);
  check_figure(*map, "write", storage.write_bytes_per_second, true);
  return true;
}

// The fields of a node that both a kind file and a group of a cluster file may give.
void read_node_fields(MapReader& reader, NodeGroup& group, bool known_kind) {
  read_device(reader, group.device, known_kind);
  const bool measured = group.device.is_cpu();
  if (!read_link(reader, "intra", group.intra, measured) && !known_kind) reader.require("intra");
  if (!read_link(reader, "nic", group.nic, measured) && !known_kind) reader.require("nic");
  reader.count("nics_per_node", group.nics_per_node, 1, kMostDevicesPerNode);
  reader.bytes("host_memory", group.host_memory_bytes);
  check_figure(reader, "host_memory", group.host_memory_bytes, true);
  reader.real("price_per_device_hour", group.price_per_device_hour_usd, 0.0, 1e6);
  reader.real("failures_per_1000_node_days", group.failures_per_1000_node_days, 0.0, 1e6);
}

// `devices` of this kind in a node: NICs, host memory and failures in proportion to them (most failures are a
// device's), and for cpu the machine's memory in equal shares.
NodeGroup node_of_kind(const DeviceKind& kind, std::int64_t nodes, std::int64_t devices) {
  NodeGroup group = kind.node;
  const double share = static_cast<double>(devices) / static_cast<double>(group.devices_per_node);
  group.nics_per_node = std::max<std::int64_t>(1, std::llround(static_cast<double>(group.nics_per_node) * share));
  group.failures_per_1000_node_days *= share;
  group.host_memory_bytes = std::floor(group.host_memory_bytes * share);
  group.nodes = nodes;
  group.devices_per_node = devices;
  if (group.device.is_cpu())
    group.device.memory_bytes = std::floor(machine_memory_bytes() / static_cast<double>(devices));
  return group;
}

Storage scaled(const Storage& per_node, std::int64_t nodes) {
  const auto factor = static_cast<double>(nodes);
  return {per_node.read_bytes_per_second * factor, per_node.write_bytes_per_second * factor};
}

NodeGroup read_group(const YamlNode& node, const std::string& path, Storage& storage) {
  MapReader reader(node, path);
  std::string kind;
  reader.require("kind");
  reader.name("kind", kind);
  std::int64_t nodes = 1, devices = 0;
  reader.count("nodes", nodes, 1, kMostNodes);
  reader.count("devices_per_node", devices, 1, kMostDevicesPerNode);
  const bool known = find_embedded(embedded_clusters(), kind) != nullptr;
  NodeGroup group;
  if (known) {
    const DeviceKind defaults = load_device_kind(kind, node.place());
    group = node_of_kind(defaults, nodes, devices > 0 ? devices : defaults.node.devices_per_node);
    const Storage share = scaled(defaults.storage_per_node, nodes);
    storage.read_bytes_per_second += share.read_bytes_per_second;
    storage.write_bytes_per_second += share.write_bytes_per_second;
  } else if (!kind.empty() && node.find("device") == nullptr) {
    load_device_kind(kind, node.find("kind")->place());  // throws, with the nearest kind
  } else {
    group.device.kind = kind;
    group.nodes = nodes;
    group.devices_per_node = std::max<std::int64_t>(1, devices);
  }
  group.name = kind;
  reader.name("name", group.name);
  read_node_fields(reader, group, known);
  reader.finish();
  return group;
}

double nic_bytes_per_second(const NodeGroup& group) {  // of a node
  return group.nic.bytes_per_second * static_cast<double>(group.nics_per_node);
}

// Traffic between groups goes through all NICs of the group that has least of them, unless the file says otherwise.
Link narrowest_border(const std::vector<NodeGroup>& groups) {
  const auto all = [](const NodeGroup& group) {
    return nic_bytes_per_second(group) * static_cast<double>(group.nodes);
  };
  const auto narrowest = std::min_element(groups.begin(), groups.end(),
                                          [&](const NodeGroup& a, const NodeGroup& b) { return all(a) < all(b); });
  Link link = narrowest->nic;
  link.bytes_per_second = all(*narrowest);
  for (const NodeGroup& group : groups)
    link.latency_seconds = std::max(link.latency_seconds, group.nic.latency_seconds);
  return link;
}

// Everything that distinguishes groups but how many nodes they have.
auto rank_key(const NodeGroup& group) {
  const Device& device = group.device;
  return std::tuple(-device.peak_bf16_flops, -device.memory_bytes, -group.intra.bytes_per_second,
                    -nic_bytes_per_second(group), -group.devices_per_node, device.kind, group.name,
                    -device.memory_bytes_per_second, -device.peak_fp32_flops, -device.peak_fp8_flops,
                    -device.reached_bf16_flops, group.intra.kind, group.intra.latency_seconds, group.nic.kind,
                    group.nic.latency_seconds, -group.nics_per_node, -group.host_memory_bytes,
                    group.price_per_device_hour_usd, group.failures_per_1000_node_days);
}

// Ranks fill the groups in this order, whatever the file's: the fastest devices first, of equal ones those with most
// memory and the faster links. Groups alike in everything are one group.
void put_in_rank_order(std::vector<NodeGroup>& groups) {
  std::sort(groups.begin(), groups.end(), [](const NodeGroup& a, const NodeGroup& b) {
    return std::tuple(rank_key(a), -a.nodes) < std::tuple(rank_key(b), -b.nodes);
  });
  std::vector<NodeGroup> distinct;
  for (NodeGroup& group : groups) {
    if (!distinct.empty() && rank_key(distinct.back()) == rank_key(group)) {
      distinct.back().nodes += group.nodes;
    } else {
      distinct.push_back(std::move(group));
    }
  }
  groups = std::move(distinct);
}

Cluster read_map(const YamlNode& node, const std::string& path, const std::string& default_name) {
  MapReader reader(node, path);
  Cluster cluster;
  cluster.name = printable(default_name, kLongestName);
  reader.name("name", cluster.name);
  reader.require("groups");
  if (const YamlNode* groups = reader.find("groups")) {
    if (!groups->is_sequence() || groups->items.empty() || groups->items.size() > 1000) {
      throw bad_input("`groups` is not a list of 1 to 1000 node groups", "write `groups: [{kind: H100, nodes: 4}]`",
                      groups->place());
    }
    for (std::size_t i = 0; i < groups->items.size(); ++i) {
      cluster.groups.push_back(
          read_group(groups->items[i], reader.full_key(fmt::format("groups[{}]", i)), cluster.storage));
    }
    put_in_rank_order(cluster.groups);
    cluster.between_groups = narrowest_border(cluster.groups);
  }
  const bool measured = std::any_of(cluster.groups.begin(), cluster.groups.end(),
                                    [](const NodeGroup& group) { return group.device.is_cpu(); });
  read_link(reader, "between_groups", cluster.between_groups, measured);
  read_storage(reader, "storage", cluster.storage);
  reader.finish();
  return cluster;
}

Cluster of_kind(const DeviceKind& kind, const std::string& name, std::int64_t nodes, std::int64_t devices) {
  Cluster cluster;
  cluster.name = name;
  cluster.groups = {node_of_kind(kind, nodes, devices)};
  cluster.between_groups = cluster.groups[0].nic;
  cluster.storage = scaled(kind.storage_per_node, nodes);
  return cluster;
}

// "4x8xH100"; nullopt when the text is not of that form.
std::optional<Cluster> from_shape(const std::string& name, const SourcePlace& place) {
  const std::size_t first = name.find('x');
  const std::size_t second = first == std::string::npos ? first : name.find('x', first + 1);
  if (second == std::string::npos) return std::nullopt;
  const auto digits = [](const std::string& text) {
    return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
  };
  const std::string nodes = name.substr(0, first), devices = name.substr(first + 1, second - first - 1);
  if (!digits(nodes) || !digits(devices)) return std::nullopt;
  const DeviceKind kind = load_device_kind(name.substr(second + 1), place);
  const std::int64_t node_count = nodes.size() > 9 ? 0 : parse_count(nodes);
  const std::int64_t device_count = devices.size() > 9 ? 0 : parse_count(devices);
  if (node_count < 1 || node_count > kMostNodes || device_count < 1 || device_count > kMostDevicesPerNode) {
    throw bad_input(fmt::format("`{}` has an impossible size", printable(name)),
                    fmt::format("nodes 1 to {}, devices per node 1 to {}", kMostNodes, kMostDevicesPerNode), place);
  }
  return of_kind(kind, name, node_count, device_count);
}

bool looks_like_file(const std::string& name, const fs::path& resolved) {
  const std::string extension = fs::path(name).extension().string();
  std::error_code ignored;
  return name.find('/') != std::string::npos || extension == ".yaml" || extension == ".yml" ||
         fs::is_regular_file(resolved, ignored);
}

}  // namespace

DeviceKind load_device_kind(const std::string& kind, const SourcePlace& place) {
  const EmbeddedSpec* spec = find_embedded(embedded_clusters(), kind);
  if (spec == nullptr) {
    throw bad_input(fmt::format("there is no device kind `{}`", printable(kind)),
                    did_you_mean(kind, device_kind_names()), place);
  }
  const YamlNode root = parse_yaml(spec->text, fmt::format("specs/clusters/{}.yaml", kind));
  MapReader reader(root, "");
  DeviceKind result;
  NodeGroup& node = result.node;
  reader.require("kind");
  reader.name("kind", node.device.kind);
  node.name = node.device.kind;
  reader.count("devices_per_node", node.devices_per_node, 1, kMostDevicesPerNode);
  read_node_fields(reader, node, node.device.is_cpu());
  read_storage(reader, "storage_per_node", result.storage_per_node);
  reader.finish();
  return result;
}

Cluster read_cluster(const YamlNode& node, const std::string& path, const std::string& default_name) {
  if (node.is_map()) return read_map(node, path, default_name);
  if (!node.is_scalar() || node.scalar.empty()) {
    throw bad_input("a cluster is NODESxGPUSxKIND, a file, or a map with `groups`", "for example `cluster: 4x8xH100`",
                    node.place());
  }
  const std::string& name = node.scalar;
  if (name == "auto") return discover_cluster().cluster;
  if (find_embedded(embedded_clusters(), name) != nullptr) {
    const DeviceKind kind = load_device_kind(name, node.place());
    return of_kind(kind, name, 1, kind.node.devices_per_node);
  }
  const fs::path resolved = node.source ? node.source->directory / name : fs::path(name);
  if (looks_like_file(name, resolved)) {
    std::error_code ignored;
    if (!fs::exists(resolved, ignored)) {
      throw environment_error(fmt::format("the cluster file {} does not exist", printable_path(resolved)),
                              "check the path, or write NODESxGPUSxKIND such as 4x8xH100", node.place());
    }
    const YamlNode root = read_yaml_file(resolved);
    return read_map(root, "", resolved.stem().string());
  }
  if (auto cluster = from_shape(name, node.place())) return *cluster;
  throw bad_input(fmt::format("`{}` is not a cluster", printable(name)),
                  fmt::format("write NODESxGPUSxKIND such as 4x8xH100 (kinds: {}), auto, or a YAML file",
                              join(device_kind_names(), ", ")),
                  node.place());
}

}  // namespace lockstep::spec
