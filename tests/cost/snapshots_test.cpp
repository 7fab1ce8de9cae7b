// Expected figures are worked out by hand, never by the code under test.
#include "lockstep/cost/snapshots.h"

#include <gtest/gtest.h>

#include "tests/cost/tiny_run.h"

namespace lockstep::cost {
namespace {

constexpr double kAll = 2 * kTinyTable + 4 * kTinyLayer;
constexpr double kStateBytes = 12;  // of a parameter in fp32: weight and two moments

plan::Run on_nodes(const std::string& layout, const std::string& cluster) {
  plan::Run run = tiny_run(layout);
  run.cluster = spec::load_cluster(cluster);
  run.cluster.groups.front().device.memory_bytes = 1e9;
  return run;
}

TEST(SnapshotMemory, replicas_need_none) {
  for (const char* layout : {"dp=1", "dp=4", "dp=2,cp=2"}) {
    EXPECT_FALSE(snapshot_memory(tiny_run(layout)).needed) << layout;
    EXPECT_EQ(snapshot_bytes(tiny_run(layout)), 0) << layout;
  }
}

TEST(SnapshotMemory, a_shard_is_kept_twice_and_so_is_that_of_a_peer) {
  for (const char* layout : {"shard=4,zero=1", "shard=4,zero=3", "shard=2,cp=2,zero=3"}) {
    const SnapshotMemory memory = snapshot_memory(tiny_run(layout));
    EXPECT_DOUBLE_EQ(memory.own, kAll / 4 * kStateBytes) << layout;
    EXPECT_DOUBLE_EQ(memory.peers, memory.own) << layout;
    EXPECT_DOUBLE_EQ(memory.total(), 4 * memory.own) << layout;
  }
}

TEST(SnapshotMemory, what_a_replica_holds_is_not_sent) {
  EXPECT_EQ(snapshot_memory(tiny_run("dp=2,shard=2,zero=3")).peers, 0);
  EXPECT_EQ(snapshot_memory(tiny_run("dp=2,tp=2")).peers, 0);
  EXPECT_DOUBLE_EQ(snapshot_memory(tiny_run("dp=2,tp=2")).own, kAll / 2 * kStateBytes);
}

TEST(SnapshotMemory, a_replica_on_the_same_node_does_not_count) {
  EXPECT_EQ(snapshot_memory(on_nodes("dp=2,shard=2,zero=3", "2x2xcpu")).peers, 0) << "replicas are on two nodes";
  const SnapshotMemory pipeline = snapshot_memory(on_nodes("pp=2,dp=2", "2x2xcpu"));
  EXPECT_DOUBLE_EQ(pipeline.peers, pipeline.own / 2) << "one of the two replicas of a node sends it";
}

TEST(SnapshotMemory, where_memory_lacks_auto_takes_none) {
  plan::Run run = tiny_run("shard=4,zero=3");
  EXPECT_GT(snapshot_bytes(run), 0);
  run.cluster.groups.front().device.memory_bytes = 12e6;  // 4 x 2.07 MB beside a step
  EXPECT_FALSE(snapshot_memory(run).fits);
  EXPECT_EQ(snapshot_bytes(run), 0);
  EXPECT_NE(why_no_snapshots(snapshot_memory(run)).find("none are taken"), std::string::npos);
  run.snapshots.every = 1;
  EXPECT_GT(snapshot_bytes(run), 0) << "the job insists";
  run.snapshots.every = 0;
  EXPECT_EQ(snapshot_bytes(run), 0);
}

}  // namespace
}  // namespace lockstep::cost
