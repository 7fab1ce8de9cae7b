#include "lockstep/spec/cluster.h"

#include <fmt/format.h>

#include "lockstep/base/units.h"
#include "lockstep/base/yaml.h"
#include "lockstep/spec/cluster_reader.h"
#include "lockstep/spec/presets.h"

namespace lockstep::spec {
namespace {

std::string link_text(const Link& link) {
  return fmt::format("{{kind: {}, bandwidth: {}, latency: {}}}", to_string(link.kind),
                     exact_bytes_per_second(link.bytes_per_second), exact_seconds(link.latency_seconds));
}

std::string device_text(const Device& device) {
  const auto flops = [](double value) { return exact_flops_per_second(value); };
  return fmt::format(
      "{{memory: {}, memory_bandwidth: {}, peak_bf16: {}, peak_fp32: {}, peak_fp8: {}, reached_bf16: {}}}",
      exact_bytes(device.memory_bytes), exact_bytes_per_second(device.memory_bytes_per_second),
      flops(device.peak_bf16_flops), flops(device.peak_fp32_flops), flops(device.peak_fp8_flops),
      flops(device.reached_bf16_flops));
}

}  // namespace

Cluster load_cluster(const std::string& name) {
  const auto source = std::make_shared<YamlSource>(YamlSource{"", {}});
  return read_cluster(YamlNode::make_scalar(name, source), "", "inline");
}

std::vector<std::string> device_kind_names() { return embedded_names(embedded_clusters()); }

std::string to_yaml(const Cluster& cluster, int indent) {
  const std::string pad(static_cast<std::size_t>(indent), ' ');
  std::string text = fmt::format("{0}name: {1}\n{0}groups:\n", pad, yaml_quote(cluster.name));
  for (const NodeGroup& group : cluster.groups) {
    text +=
        fmt::format("{0}  - name: {1}\n{0}    kind: {2}\n", pad, yaml_quote(group.name), yaml_quote(group.device.kind));
    text += fmt::format("{0}    nodes: {1}\n{0}    devices_per_node: {2}\n", pad, group.nodes, group.devices_per_node);
    text += fmt::format("{0}    device: {1}\n", pad, device_text(group.device));
    text += fmt::format("{0}    intra: {1}\n{0}    nic: {2}\n", pad, link_text(group.intra), link_text(group.nic));
    text += fmt::format("{0}    nics_per_node: {1}\n", pad, group.nics_per_node);
    text += fmt::format("{0}    host_memory: {1}\n", pad, exact_bytes(group.host_memory_bytes));
    text += fmt::format("{0}    price_per_device_hour: {1}\n", pad, exact_real(group.price_per_device_hour_usd));
    text +=
        fmt::format("{0}    failures_per_1000_node_days: {1}\n", pad, exact_real(group.failures_per_1000_node_days));
  }
  text += fmt::format("{0}between_groups: {1}\n", pad, link_text(cluster.between_groups));
  text += fmt::format("{0}storage: {{read: {1}, write: {2}}}\n", pad,
                      exact_bytes_per_second(cluster.storage.read_bytes_per_second),
                      exact_bytes_per_second(cluster.storage.write_bytes_per_second));
  return text;
}

}  // namespace lockstep::spec
