#include "lockstep/parallel/mesh.h"

#include <gtest/gtest.h>

#include <set>

#include "lockstep/base/error.h"
#include "tests/parallel/ranks.h"

namespace lockstep::parallel {
namespace {

using Groups = std::vector<std::vector<int>>;

TEST(Mesh, numbers_ranks_with_tp_fastest_and_pp_slowest) {
  const Mesh mesh({.pp = 2, .dp = 2, .shard = 2, .cp = 2, .tp = 2});
  EXPECT_EQ(mesh.world_size(), 32);
  // Coordinates are {tp, cp, shard, dp, pp}.
  EXPECT_EQ(mesh.coordinates(1), (Coordinates{1, 0, 0, 0, 0}));
  EXPECT_EQ(mesh.coordinates(2), (Coordinates{0, 1, 0, 0, 0}));
  EXPECT_EQ(mesh.coordinates(4), (Coordinates{0, 0, 1, 0, 0}));
  EXPECT_EQ(mesh.coordinates(8), (Coordinates{0, 0, 0, 1, 0}));
  EXPECT_EQ(mesh.coordinates(16), (Coordinates{0, 0, 0, 0, 1}));
  for (int rank = 0; rank < 32; ++rank) EXPECT_EQ(mesh.rank(mesh.coordinates(rank)), rank);
}

TEST(Mesh, groups_of_tensor_and_data_parallel_ranks) {
  const Mesh mesh({.dp = 3, .tp = 2});
  EXPECT_EQ(mesh.groups({Axis::kTp}), (Groups{{0, 1}, {2, 3}, {4, 5}}));
  EXPECT_EQ(mesh.groups({Axis::kDp}), (Groups{{0, 2, 4}, {1, 3, 5}}));
  EXPECT_EQ(mesh.group(3, {Axis::kDp}), (std::vector<int>{1, 3, 5}));
  EXPECT_EQ(mesh.group(3, {Axis::kTp, Axis::kDp}), (std::vector<int>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(mesh.group(3, {Axis::kPp}), (std::vector<int>{3}));
}

TEST(Mesh, groups_of_pipeline_and_hybrid_sharding) {
  const Mesh mesh({.pp = 2, .dp = 2, .shard = 2});
  EXPECT_EQ(mesh.groups({Axis::kShard}), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(mesh.groups({Axis::kDp}), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(mesh.groups(kDataAxes), (Groups{{0, 1, 2, 3}, {4, 5, 6, 7}}));
  EXPECT_EQ(mesh.groups({Axis::kPp}), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(Mesh, groups_over_axes_that_are_not_neighbours) {
  const Mesh mesh({.dp = 2, .cp = 2, .tp = 2});
  EXPECT_EQ(mesh.groups({Axis::kTp, Axis::kDp}), (Groups{{0, 1, 4, 5}, {2, 3, 6, 7}}));
}

TEST(Mesh, puts_every_rank_into_exactly_one_group) {
  const Mesh mesh({.pp = 2, .dp = 3, .shard = 2, .cp = 1, .tp = 4});
  for (const AxisSet& axes : {AxisSet{Axis::kTp}, AxisSet{Axis::kDp, Axis::kPp}, kDataAxes, kReplicaAxes}) {
    std::multiset<int> seen;
    for (const auto& group : mesh.groups(axes)) {
      EXPECT_EQ(static_cast<int>(group.size()), mesh.size(axes));
      seen.insert(group.begin(), group.end());
    }
    EXPECT_EQ(seen.size(), 48u);
    EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), 48u);
  }
}

TEST(Mesh, refuses_impossible_sizes) {
  EXPECT_THROW(Mesh({.dp = 0}), UserError);
  EXPECT_THROW(Mesh({.pp = 1 << 20, .dp = 1 << 20}), UserError);
}

TEST(Mesh, makes_communicators_that_sum_over_their_group_only) {
  const Mesh mesh({.dp = 2, .tp = 2});
  run_ranks(4, [&](comm::Communicator world) {
    comm::Communicator tp = mesh.subgroup(world, {Axis::kTp});
    comm::Communicator dp = mesh.subgroup(world, {Axis::kDp});
    double over_tp = world.rank();
    double over_dp = world.rank();
    tp.all_reduce({&over_tp, 1, comm::DType::kF64}).wait();
    dp.all_reduce({&over_dp, 1, comm::DType::kF64}).wait();
    EXPECT_EQ(over_tp, world.rank() < 2 ? 1.0 : 5.0);
    EXPECT_EQ(over_dp, world.rank() % 2 == 0 ? 2.0 : 4.0);
    EXPECT_EQ(tp.name(), "tp");
    world.barrier().wait();
  });
}

}  // namespace
}  // namespace lockstep::parallel
