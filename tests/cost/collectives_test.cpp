#include "lockstep/cost/collectives.h"

#include <gtest/gtest.h>

namespace lockstep::cost {
namespace {

Profile profile_with(std::vector<CollectivePoint> points) {
  Profile profile;
  profile.collectives = std::move(points);
  return profile;
}

TEST(Collectives, ring_volumes_of_four_ranks) {
  EXPECT_DOUBLE_EQ(ring_bytes_per_rank(CollectiveOp::kAllReduce, 100, 4), 150);
  EXPECT_DOUBLE_EQ(ring_bytes_per_rank(CollectiveOp::kReduceScatter, 100, 4), 75);
  EXPECT_DOUBLE_EQ(ring_bytes_per_rank(CollectiveOp::kAllGather, 100, 4), 75);
  EXPECT_DOUBLE_EQ(ring_bytes_per_rank(CollectiveOp::kAllToAll, 100, 4), 75);
  EXPECT_DOUBLE_EQ(ring_bytes_per_rank(CollectiveOp::kBroadcast, 100, 4), 100);
  EXPECT_DOUBLE_EQ(ring_bytes_per_rank(CollectiveOp::kAllReduce, 100, 1), 0);
  EXPECT_EQ(ring_steps(CollectiveOp::kAllReduce, 4), 6);
  EXPECT_EQ(ring_steps(CollectiveOp::kAllGather, 4), 3);
  EXPECT_EQ(ring_steps(CollectiveOp::kAllGather, 1), 0);
}

TEST(Collectives, measured_sizes_come_back_exactly_and_others_lie_between) {
  const Profile profile =
      profile_with({{CollectiveOp::kAllReduce, 4, 1000, 1e-3, 0}, {CollectiveOp::kAllReduce, 4, 100000, 1e-1, 0}});
  EXPECT_DOUBLE_EQ(*collective_seconds(profile, CollectiveOp::kAllReduce, 1000, 4), 1e-3);
  EXPECT_DOUBLE_EQ(*collective_seconds(profile, CollectiveOp::kAllReduce, 100000, 4), 1e-1);
  EXPECT_NEAR(*collective_seconds(profile, CollectiveOp::kAllReduce, 10000, 4), 1e-2, 1e-9);
  EXPECT_DOUBLE_EQ(*collective_seconds(profile, CollectiveOp::kAllReduce, 10, 4), 1e-3);      // latency
  EXPECT_DOUBLE_EQ(*collective_seconds(profile, CollectiveOp::kAllReduce, 1000000, 4), 1.0);  // bandwidth
}

TEST(Collectives, a_longer_message_never_costs_less_even_when_the_sweep_dips) {
  const Profile profile = profile_with({{CollectiveOp::kAllReduce, 2, 100, 2e-3, 0},
                                        {CollectiveOp::kAllReduce, 2, 1000, 1e-3, 0},
                                        {CollectiveOp::kAllReduce, 2, 10000, 5e-3, 0}});
  double before = 0;
  for (double bytes = 10; bytes < 1e6; bytes *= 1.3) {
    const double seconds = *collective_seconds(profile, CollectiveOp::kAllReduce, bytes, 2);
    EXPECT_GE(seconds, before) << bytes;
    before = seconds;
  }
}

TEST(Collectives, other_groups_scale_by_ring_volume_and_steps) {
  // Two ranks: latency 1 ms, then 1 us per byte. Eight ranks: 7 times the steps, volume 2 x 7/8 against 2 x 1/2: 1.75.
  const Profile profile =
      profile_with({{CollectiveOp::kAllReduce, 2, 1, 1e-3, 0}, {CollectiveOp::kAllReduce, 2, 1000000, 1.001, 0}});
  EXPECT_NEAR(*collective_seconds(profile, CollectiveOp::kAllReduce, 1000000, 8), 7e-3 + 1.75, 1e-9);
  // Reduce-scatter, never swept: half of both.
  EXPECT_NEAR(*collective_seconds(profile, CollectiveOp::kReduceScatter, 1000000, 2), 0.5e-3 + 0.5, 1e-9);
}

TEST(Collectives, nothing_to_do_is_free_and_no_sweep_is_no_answer) {
  EXPECT_EQ(*collective_seconds({}, CollectiveOp::kAllReduce, 1000, 1), 0);
  EXPECT_EQ(*collective_seconds({}, CollectiveOp::kAllReduce, 0, 4), 0);
  EXPECT_FALSE(collective_seconds({}, CollectiveOp::kAllReduce, 1000, 4).has_value());
}

}  // namespace
}  // namespace lockstep::cost
