#include "lockstep/spec/cluster.h"

#include <gtest/gtest.h>

#include <fstream>

#include "../base/expect_user_error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/units.h"
#include "lockstep/base/yaml.h"
#include "lockstep/spec/cluster_reader.h"
#include "lockstep/spec/machine.h"

namespace lockstep::spec {
namespace {

using lockstep::testing::user_error;

Cluster read(const std::string& text) {
  const YamlNode root = parse_yaml(text, "c.yaml");
  return read_cluster(root, "", "inline");
}

TEST(Cluster, shape_composes_the_defaults_of_the_kind) {
  const Cluster cluster = load_cluster("4x8xH100");
  ASSERT_EQ(cluster.groups.size(), 1u);
  const NodeGroup& group = cluster.groups[0];
  EXPECT_EQ(cluster.name, "4x8xH100");
  EXPECT_EQ(cluster.devices(), 32);
  EXPECT_EQ(group.device.memory_bytes, 79.1 * kGiB);
  EXPECT_EQ(group.device.peak_bf16_flops, 989.4e12);
  EXPECT_EQ(group.intra.kind, LinkKind::kNvlink);
  EXPECT_EQ(group.intra.bytes_per_second, 450e9);
  EXPECT_EQ(group.nic.bytes_per_second, 50e9);
  EXPECT_EQ(group.nics_per_node, 8);
  EXPECT_EQ(group.failures_per_1000_node_days, 3.8);
  EXPECT_EQ(cluster.storage.read_bytes_per_second, 8e9);
}

TEST(Cluster, smaller_nodes_have_fewer_nics_and_failures) {
  const NodeGroup half = load_cluster("1x4xH100").groups[0];
  EXPECT_EQ(half.nics_per_node, 4);
  EXPECT_DOUBLE_EQ(half.failures_per_1000_node_days, 1.9);
  EXPECT_EQ(load_cluster("1x1xL4").groups[0].nics_per_node, 1);
}

TEST(Cluster, all_kinds_load_and_are_plausible) {
  const std::vector<std::string> wanted = {"A100-40",   "A100",   "A10G",    "B200",    "B300", "GB200", "GB300",
                                           "H100-PCIe", "H100",   "H200",    "H800",    "L4",   "L40S",  "MI250X",
                                           "MI300X",    "MI325X", "RTX4090", "V100-16", "V100", "cpu"};
  EXPECT_EQ(device_kind_names(), wanted);
  for (const std::string& kind : wanted) {
    const Cluster cluster = load_cluster("2x8x" + kind);
    const NodeGroup& group = cluster.groups[0];
    EXPECT_EQ(group.device.kind, kind);
    EXPECT_GT(group.device.memory_bytes, 0) << kind;
    if (kind == "cpu") continue;
    EXPECT_GT(group.device.peak_bf16_flops, group.device.peak_fp32_flops) << kind;
    EXPECT_TRUE(group.device.peak_fp8_flops == 0 || group.device.peak_fp8_flops > 1.9 * group.device.peak_bf16_flops);
    EXPECT_GT(group.intra.bytes_per_second, group.nic.bytes_per_second) << kind;
    EXPECT_GE(group.price_per_device_hour_usd, 0.5) << kind;
    EXPECT_GE(group.failures_per_1000_node_days, 3.7) << kind;
    EXPECT_LE(group.failures_per_1000_node_days, 6.6) << kind;
    EXPECT_GT(cluster.storage.write_bytes_per_second, 0) << kind;
  }
}

TEST(Cluster, kinds_have_the_figures_of_their_datasheets) {
  struct Row {
    const char* kind;
    double bf16, memory_bandwidth, link;  // dense TFLOPS, TB/s, GB/s per direction
  };
  const Row rows[] = {{"V100", 125, 0.9, 150},     {"A100-40", 312, 1.555, 300}, {"A100", 312, 2.039, 300},
                      {"H100", 989.4, 3.35, 450},  {"H100-PCIe", 756, 2.0, 64},  {"H200", 989.4, 4.8, 450},
                      {"H800", 989.4, 3.35, 200},  {"B200", 2250, 7.67, 900},    {"B300", 2250, 7.7, 900},
                      {"GB200", 2500, 8, 900},     {"GB300", 2500, 8, 900},      {"L4", 121, 0.3, 32},
                      {"L40S", 362, 0.864, 32},    {"A10G", 70, 0.6, 32},        {"RTX4090", 165.2, 1.008, 16},
                      {"MI250X", 191.5, 1.6, 100}, {"MI300X", 1307.4, 5.3, 448}, {"MI325X", 1307.4, 6, 448}};
  for (const Row& row : rows) {
    const NodeGroup group = load_cluster(row.kind).groups[0];
    EXPECT_NEAR(group.device.peak_bf16_flops, row.bf16 * 1e12, 1) << row.kind;
    EXPECT_NEAR(group.device.memory_bytes_per_second, row.memory_bandwidth * 1e12, 1) << row.kind;
    EXPECT_NEAR(group.intra.bytes_per_second, row.link * 1e9, 1) << row.kind;
  }
}

TEST(Cluster, a_node_of_nvl72_is_the_whole_nvlink_domain) {
  for (const char* kind : {"GB200", "GB300"}) {
    const Cluster rack = load_cluster(kind);
    EXPECT_EQ(rack.devices(), 72);
    EXPECT_EQ(rack.groups[0].nics_per_node, 72);
    const NodeGroup part = load_cluster(std::string("2x36x") + kind).groups[0];
    EXPECT_EQ(part.nics_per_node, 36);
    EXPECT_DOUBLE_EQ(part.failures_per_1000_node_days, 3.8 * 36 / 8);
  }
}

TEST(Cluster, cpu_shares_this_machines_memory_and_guesses_no_speed) {
  const NodeGroup group = load_cluster("1x4xcpu").groups[0];
  EXPECT_EQ(group.devices_per_node, 4);
  EXPECT_TRUE(group.device.is_cpu());
  EXPECT_NEAR(group.device.memory_bytes * 4, machine_memory_bytes(), 4);
  EXPECT_EQ(group.device.peak_fp32_flops, 0);
  EXPECT_EQ(group.device.memory_bytes_per_second, 0);
}

TEST(Cluster, every_kind_survives_being_written_and_read) {
  for (const std::string& kind : device_kind_names()) {
    const Cluster cluster = load_cluster("3x2x" + kind);
    EXPECT_EQ(read(to_yaml(cluster)), cluster) << to_yaml(cluster);
  }
}

TEST(Cluster, node_groups_may_differ) {
  const Cluster cluster = read(R"(
name: mixed
groups:
  - {kind: H100, nodes: 4, nic: {kind: roce, bandwidth: 200Gb/s}, nics_per_node: 4, price_per_device_hour: 2.5}
  - {kind: A100, nodes: 2, devices_per_node: 4, name: old}
storage: {read: 40GB/s, write: 20GB/s}
)");
  EXPECT_EQ(cluster.devices(), 4 * 8 + 2 * 4);
  EXPECT_EQ(cluster.groups[0].nic.kind, LinkKind::kRoce);
  EXPECT_EQ(cluster.groups[0].nic.latency_seconds, load_cluster("H100").groups[0].nic.latency_seconds);
  EXPECT_EQ(cluster.groups[1].name, "old");
  EXPECT_EQ(cluster.groups[1].nics_per_node, 4);
  EXPECT_EQ(cluster.between_groups.bytes_per_second, 2 * 4 * 25e9);  // every NIC of the narrower side
  EXPECT_EQ(cluster.storage.read_bytes_per_second, 40e9);
  EXPECT_EQ(read(to_yaml(cluster)), cluster);
}

TEST(Cluster, a_device_of_ones_own_needs_its_figures) {
  const std::string start =
      "groups:\n  - kind: X1\n    device: {memory: 64GiB, memory_bandwidth: 2TB/s, peak_bf16: 500TFLOPS}\n";
  const std::string links =
      "    intra: {kind: pcie, bandwidth: 64GB/s, latency: 5us}\n    nic: {kind: ethernet, bandwidth: 100Gb/s, "
      "latency: 20us}\n";
  EXPECT_EQ(read(start + links).groups[0].device.memory_bytes, 64 * kGiB);
  EXPECT_HAS(user_error([&] { read(start); }), "`groups[0].intra` is missing");
  EXPECT_HAS(user_error([&] { read("groups: [{kind: X1, device: {memory: 1GB}}]"); }), "memory_bandwidth` is missing");
}

TEST(Cluster, errors_name_the_place_and_the_nearest_name) {
  EXPECT_HAS(user_error([] { load_cluster("4x8xH10"); }), "there is no device kind `H10`; did you mean `H100`?");
  EXPECT_HAS(user_error([] { load_cluster("0x8xH100"); }), "impossible size");
  EXPECT_HAS(user_error([] { load_cluster("4x99999999999999999999xH100"); }), "impossible size");
  EXPECT_HAS(user_error([] { load_cluster("foo"); }), "NODESxGPUSxKIND");
  EXPECT_HAS(user_error([] { load_cluster("no.yaml"); }, ExitCode::kEnvironment), "does not exist");
  EXPECT_EQ(user_error([] { read("groups:\n  - kind: H100\n    nodse: 4\n"); }),
            "c.yaml:3:5: unknown key `nodse` in groups[0]; did you mean `nodes`?");
  EXPECT_HAS(user_error([] { read("groups: [{kind: H100, device: {memory: 80}}]"); }),
             "c.yaml:1:40: `groups[0].device.memory`: `80` is not a size: the unit is missing");
  EXPECT_HAS(user_error([] { read("groups: [{kind: H100, nic: {kind: infinband}}]"); }), "did you mean `infiniband`?");
  EXPECT_HAS(user_error([] { read("groups: []"); }), "node groups");
}

TEST(Cluster, figures_that_others_are_divided_by_cannot_be_0) {
  EXPECT_HAS(user_error([] { read("groups: [{kind: H100, device: {memory: 0}}]"); }),
             "c.yaml:1:40: `groups[0].device.memory` is 0 or missing");
  EXPECT_HAS(user_error([] { read("groups: [{kind: H100, device: {peak_bf16: 0}}]"); }), "peak_bf16` is 0");
  EXPECT_HAS(user_error([] { read("groups: [{kind: H100, nic: {bandwidth: 0}}]"); }), "nic.bandwidth` is 0");
  EXPECT_HAS(user_error([] { read("groups: [{kind: H100, device: {memory: 1e30GB}}]"); }), "impossibly large");
  EXPECT_HAS(user_error([] { read("groups: [{kind: H100, nic: {latency: 2h}}]"); }), "more than an hour");
}

TEST(Cluster, is_found_by_path_and_named_after_its_stem) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "lab.yaml") << "groups: [{kind: L4}]\n";
  EXPECT_EQ(load_cluster((folder.path() / "lab.yaml").string()).name, "lab");
}

}  // namespace
}  // namespace lockstep::spec
