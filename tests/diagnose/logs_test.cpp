// Logs: the ways NCCL takes, what it complains of, and what kernels say about hardware.
#include <gtest/gtest.h>

#include "lockstep/diagnose/foreign/kernel_logs.h"
#include "lockstep/diagnose/foreign/nccl_log.h"

namespace lockstep::diagnose {
namespace {

// Two nodes of two GPUs each; `way` is how they talk to each other, `inside` within a node.
std::string log_of(const std::string& way, const std::string& inside, const std::string& more = "") {
  std::string text = "some program's output\n";
  for (int rank = 0; rank < 4; ++rank) {
    const std::string at = "node" + std::to_string(rank / 2) + ":10" + std::to_string(rank) + ":20 [" +
                           std::to_string(rank % 2) + "] NCCL INFO ";
    text += at + "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>\n";
    text += at + "ncclCommInitRank comm 0x55 rank " + std::to_string(rank) + " nranks 4 cudaDev " +
            std::to_string(rank % 2) + " nvmlDev 0 busId 61000 commId 0x1 - Init COMPLETE\n";
    if (rank == 0) text += at + "Channel 00/02 :    0   1   2   3\n";
    const int next = (rank + 1) % 4;
    const std::string hop = "Channel 00/0 : " + std::to_string(rank) + "[0] -> " + std::to_string(next) + "[1] ";
    if (rank % 2 == 1) {
      text += at + hop + "[send] via " + way + "\n";
      text += at + hop + "[receive] via " + way + "\n";
    } else {
      text += at + hop + "via " + inside + "\n";
    }
  }
  return text + more;
}

std::vector<Finding> findings(const std::string& text) { return nccl_findings(read_nccl_log(text)); }

TEST(NcclLog, reads_ranks_hosts_and_ways) {
  const NcclLog log = read_nccl_log(log_of("NET/IB/1/GDRDMA", "P2P/CUMEM", "NCCL version 2.27.3+cuda12.9\n"));
  EXPECT_EQ(log.hosts, (std::map<int, std::string>{{0, "node0"}, {1, "node0"}, {2, "node1"}, {3, "node1"}}));
  EXPECT_EQ(log.within_p2p, 2);
  EXPECT_EQ(log.between_direct, 2);
  EXPECT_EQ(log.versions, std::set<std::string>{"2.27.3"});
  EXPECT_EQ(log.adapters, (std::set<std::string>{"mlx5_0", "mlx5_1"}));
  EXPECT_EQ(log.adapters_used, std::set<std::string>{"1"});
  EXPECT_EQ(log.rings, (std::vector<std::vector<int>>{{0, 1, 2, 3}}));
}

TEST(NcclLog, a_sound_one_gets_no_finding) {
  EXPECT_TRUE(findings(log_of("NET/IB/1/GDRDMA", "P2P/CUMEM")).empty());
  EXPECT_TRUE(findings(log_of("NET/IBext_v8/1/GDRDMA/Shared", "P2P/IPC/read")).empty());
}

TEST(NcclLog, sockets_between_nodes_are_a_slow_link) {
  const auto found = findings(log_of("NET/Socket/0", "P2P/IPC"));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].cause, Cause::kSlowLink);
  EXPECT_NE(found[0].evidence.find("though there are 2 RDMA adapters"), std::string::npos) << found[0].evidence;
  const auto set =
      findings(log_of("NET/Socket/0", "P2P/IPC", "node0:1:1 [0] NCCL INFO NCCL_IB_DISABLE set by environment to 1.\n"));
  ASSERT_EQ(set.size(), 1U);
  EXPECT_EQ(set[0].fix, "unset NCCL_IB_DISABLE");
}

TEST(NcclLog, ways_through_the_memory_of_the_host_are_slow_links) {
  EXPECT_EQ(findings(log_of("NET/IB/1", "P2P/IPC")).at(0).cause, Cause::kSlowLink);
  EXPECT_EQ(findings(log_of("NET/IB/1/GDRDMA", "SHM/direct/direct")).at(0).cause, Cause::kSlowLink);
  EXPECT_EQ(findings(log_of("NET/IB/1/GDRDMA", "direct shared memory")).at(0).cause, Cause::kSlowLink);
}

TEST(NcclLog, a_bandwidth_far_below_the_adapters_is_a_slow_link_with_its_figures) {
  const std::string slow = log_of("NET/IB/1/GDRDMA", "P2P/IPC", "# Avg bus bandwidth    : 6.25\n");
  const auto found = findings(slow);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_NE(found[0].evidence.find("6.25 GB/s (50.00 Gb/s), 25% of what 2 adapters"), std::string::npos)
      << found[0].evidence;
  EXPECT_NEAR(found[0].cost_percent, 100.0 * (1.0 - 6.25 / 20.0), 0.01);
  EXPECT_TRUE(findings(log_of("NET/IB/1/GDRDMA", "P2P/IPC", " busbw: 176.5  Gbps\n")).empty());
}

TEST(NcclLog, rings_that_go_to_and_fro_are_a_wrong_placement) {
  std::string text = log_of("NET/IB/1/GDRDMA", "P2P/IPC");
  text.replace(text.find("0   1   2   3"), 13, "0   2   1   3");
  const auto found = findings(text);
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].cause, Cause::kWrongPlacement);
  EXPECT_NEAR(found[0].cost_percent, 50.0, 1e-9);
}

TEST(NcclLog, the_first_error_is_the_cause_not_those_that_follow) {
  const std::string errors =
      "node1:102:20 [0] misc/socket.cc:58 NCCL WARN socketProgress: Connection closed by remote peer node0<3>\n"
      "[2026-03-13 22:26:02] node1:103:20 [1] ibvwrap.c:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection "
      "timed out\n"
      "node0:101:20 [1] NCCL WARN NET/IB : Got completion from peer 10.0.0.1<3> with status=12 opcode=1\n";
  const auto found = findings(log_of("NET/IB/1/GDRDMA", "P2P/IPC", errors));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].cause, Cause::kCrash);
  EXPECT_EQ(found[0].ranks, std::vector<int>{3});
  EXPECT_NE(found[0].evidence.find("node1, GPU 1: Call to ibv_modify_qp failed"), std::string::npos)
      << found[0].evidence;
}

TEST(NcclLog, a_watchdog_that_ends_it_is_a_hang) {
  const auto found =
      findings(log_of("NET/IB/1/GDRDMA", "P2P/IPC",
                      "[E ProcessGroupNCCL.cpp:474] [Rank 2] Watchdog caught collective operation timeout: "
                      "WorkNCCL(SeqNum=81, OpType=ALLREDUCE)\n"));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].cause, Cause::kHang);
  EXPECT_EQ(found[0].ranks, std::vector<int>{2});
}

TEST(NcclLog, different_versions_are_named) {
  const auto found =
      findings(log_of("NET/IB/1/GDRDMA", "P2P/IPC", "NCCL version 2.18.3+cuda12\nNCCL version 2.21.5+cuda12\n"));
  ASSERT_EQ(found.size(), 1U);
  EXPECT_EQ(found[0].evidence, "ranks run different versions of NCCL: 2.18.3, 2.21.5");
}

TEST(KernelLogs, tell_faults_of_hardware_and_programs_that_were_ended) {
  const auto fallen = kernel_log_findings(
      "[  206.764307] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n"
      "[  207.764307] NVRM: Xid (PCI:0000:9b:00): 79, pid=1, GPU has fallen off the bus.\n");
  ASSERT_EQ(fallen.size(), 1U);
  EXPECT_EQ(fallen[0].cause, Cause::kHardwareError);
  EXPECT_NE(fallen[0].evidence.find("(2 times)"), std::string::npos);
  EXPECT_EQ(kernel_log_findings("6,1,2,-;NVRM: Xid (PCI:0000:3b:00): 31, pid=77, MMU Fault\n").at(0).cause,
            Cause::kCrash);
  EXPECT_EQ(kernel_log_findings("[1.0] Out of memory: Killed process 1234 (python)\n").at(0).cause, Cause::kCrash);
  EXPECT_EQ(kernel_log_findings("[Feb 27 2025 15:10:02] [ERROR] [tid 1] detected NVSwitch fatal error 20009 on fid 0\n")
                .at(0)
                .cause,
            Cause::kHardwareError);
}

TEST(KernelLogs, of_a_sound_node_say_nothing) {
  EXPECT_TRUE(kernel_log_findings("[  1.0] Linux version 6.1\n[  2.0] nvidia-nvswitch0: open (major=510)\n"
                                  "[Feb 25 2025 13:59:45] [INFO] [tid 1808] multicast group 0 is freed.\n")
                  .empty());
}

}  // namespace
}  // namespace lockstep::diagnose
