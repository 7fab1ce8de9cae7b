#include "lockstep/spec/discovery.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::spec {
namespace {

namespace fs = std::filesystem;

// A machine that is made up: its variables, its programs, its /sys.
class Machine {
 public:
  Machine& variable(const std::string& name, const std::string& value) {
    variables_[name] = value;
    return *this;
  }
  Machine& prints(const std::string& command, const std::string& text) {
    outputs_[command] = text;
    return *this;
  }
  Machine& file(const std::string& path, const std::string& text) {
    fs::create_directories((root_.path() / path).parent_path());
    std::ofstream(root_.path() / path) << text;
    return *this;
  }
  Discovered discovered(int cores = 4) const {
    Surroundings here;
    here.variable = [this](const std::string& name) -> std::optional<std::string> {
      const auto found = variables_.find(name);
      return found == variables_.end() ? std::nullopt : std::optional(found->second);
    };
    here.output_of = [this](const std::vector<std::string>& argv) -> std::optional<std::string> {
      for (const auto& [command, text] : outputs_) {
        std::string words;
        for (const std::string& word : argv) words += word + " ";
        if (words.rfind(command, 0) == 0) return text;
      }
      return std::nullopt;
    };
    here.root = root_.path().string();
    here.cores = cores;
    return discover_cluster(here);
  }

 private:
  std::map<std::string, std::string> variables_, outputs_;
  TemporaryFolder root_;
};

constexpr const char* kEightH100 =
    "NVIDIA H100 80GB HBM3, 81559\nNVIDIA H100 80GB HBM3, 81559\nNVIDIA H100 80GB HBM3, 81559\n"
    "NVIDIA H100 80GB HBM3, 81559\nNVIDIA H100 80GB HBM3, 81559\nNVIDIA H100 80GB HBM3, 81559\n"
    "NVIDIA H100 80GB HBM3, 81559\nNVIDIA H100 80GB HBM3, 81559\n";

std::string all(const Discovered& found) {
  std::string text;
  for (const std::string& line : found.assumptions) text += line + "\n";
  return text;
}

TEST(Discovery, a_machine_without_gpus_is_a_node_of_its_cores) {
  const Discovered found = Machine().discovered(2);
  EXPECT_EQ(found.cluster.name, "auto:1x2xcpu");
  EXPECT_NE(all(found).find("this machine"), std::string::npos);
}

TEST(Discovery, many_cores_do_not_make_many_ranks) { EXPECT_EQ(Machine().discovered(192).cluster.devices(), 8); }

TEST(Discovery, gpus_and_their_links_are_read_from_the_driver) {
  Machine machine;
  machine.prints("nvidia-smi --query-gpu", kEightH100)
      .prints("nvidia-smi topo", "\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n");
  const Discovered found = machine.discovered();
  EXPECT_EQ(found.cluster.name, "auto:1x8xH100");
  EXPECT_EQ(found.cluster.groups.front().intra.kind, LinkKind::kNvlink);
}

TEST(Discovery, gpus_without_nvlink_are_connected_by_pcie) {
  Machine machine;
  machine.prints("nvidia-smi --query-gpu", kEightH100)
      .prints("nvidia-smi topo", "\tGPU0\tGPU1\nGPU0\t X \tSYS\nGPU1\tSYS\t X \n");
  const Discovered found = machine.discovered();
  EXPECT_EQ(found.cluster.groups.front().intra.kind, LinkKind::kPcie);
  EXPECT_LT(found.cluster.groups.front().intra.bytes_per_second, 40e9);
}

TEST(Discovery, infiniband_ports_that_are_active_count) {
  Machine machine;
  machine.prints("nvidia-smi --query-gpu", kEightH100);
  for (const char* device : {"mlx5_0", "mlx5_1"}) {
    const std::string port = std::string("sys/class/infiniband/") + device + "/ports/1/";
    machine.file(port + "state", "4: ACTIVE\n").file(port + "rate", "200 Gb/sec (4X HDR)\n");
    machine.file(port + "link_layer", "InfiniBand\n");
  }
  machine.file("sys/class/infiniband/mlx5_2/ports/1/state", "1: DOWN\n");
  const NodeGroup group = machine.discovered().cluster.groups.front();
  EXPECT_EQ(group.nics_per_node, 2);
  EXPECT_DOUBLE_EQ(group.nic.bytes_per_second, 25e9);
  EXPECT_EQ(group.nic.kind, LinkKind::kInfiniband);
}

TEST(Discovery, a_slurm_allocation_tells_nodes_and_gpus) {
  Machine machine;
  machine.variable("SLURM_JOB_ID", "7").variable("SLURM_JOB_NUM_NODES", "4");
  machine.prints("scontrol show node", "NodeName=n1 CPUTot=96 Gres=gpu:a100:4(S:0-1) State=MIXED");
  const Discovered found = machine.discovered();
  EXPECT_EQ(found.cluster.name, "auto:4x4xA100");
  EXPECT_NE(all(found).find("Slurm job 7"), std::string::npos);
}

TEST(Discovery, gpus_of_unknown_kind_are_said_instead_of_guessed) {
  Machine machine;
  machine.variable("SLURM_JOB_ID", "7").variable("SLURM_JOB_NUM_NODES", "2");
  machine.prints("scontrol show node", "NodeName=n1 Gres=gpu:8");
  EXPECT_THROW(machine.discovered(), UserError);
  EXPECT_THROW(Machine().prints("nvidia-smi --query-gpu", "NVIDIA T1000, 4096\n").discovered(), UserError);
}

TEST(Discovery, product_names_become_presets) {
  EXPECT_EQ(kind_of_gpu("NVIDIA A100-SXM4-40GB"), "A100-40");
  EXPECT_EQ(kind_of_gpu("NVIDIA A100-SXM4-80GB"), "A100");
  EXPECT_EQ(kind_of_gpu("NVIDIA H100 PCIe"), "H100-PCIe");
  EXPECT_EQ(kind_of_gpu("NVIDIA GB200"), "GB200");
  EXPECT_EQ(kind_of_gpu("NVIDIA L40S"), "L40S");
  EXPECT_EQ(kind_of_gpu("NVIDIA L4"), "L4");
  EXPECT_EQ(kind_of_gpu("NVIDIA L40"), "");
  EXPECT_EQ(kind_of_gpu("Tesla V100-SXM2-16GB"), "V100-16");
}

TEST(Discovery, pods_and_other_launchers_name_the_nodes) {
  EXPECT_EQ(Machine().variable("LOCKSTEP_NODES", "a:1,b:1,c:1").discovered(1).cluster.name, "auto:3x1xcpu");
  EXPECT_EQ(Machine().variable("PET_NNODES", "2").discovered(1).cluster.name, "auto:2x1xcpu");
  EXPECT_NE(all(Machine().variable("KUBERNETES_SERVICE_HOST", "10.0.0.1").discovered()).find("pod"), std::string::npos);
}

}  // namespace
}  // namespace lockstep::spec
