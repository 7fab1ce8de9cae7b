#include "lockstep/planner/money.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep::planner {
namespace {

spec::NodeGroup group_of(std::int64_t nodes, std::int64_t devices, double price) {
  spec::NodeGroup group;
  group.nodes = nodes;
  group.devices_per_node = devices;
  group.price_per_device_hour_usd = price;
  return group;
}

spec::Cluster cluster_of(std::vector<spec::NodeGroup> groups) {
  spec::Cluster cluster;
  cluster.groups = std::move(groups);
  return cluster;
}

TEST(Money, of_a_trillion_tokens_by_hand) {
  // 1e12 tokens at 400,000 a second: 2.5e6 s of training, 694.4 hours; 95% of the wall trains: 730.99 hours.
  const plan::Cost cost = cost_of(cluster_of({group_of(4, 8, 2.5)}), 32, 1e12, 400'000, 0.95);
  const double hours = 2.5e6 / 3600 / 0.95;
  EXPECT_NEAR(hours, 730.994, 1e-3);
  EXPECT_DOUBLE_EQ(cost.days, hours / 24);
  EXPECT_DOUBLE_EQ(cost.gpu_hours, 32 * hours);
  EXPECT_DOUBLE_EQ(cost.usd, 32 * hours * 2.5);
}

TEST(Money, whole_nodes_are_paid) {
  const HourlyPrice price = hourly_price(cluster_of({group_of(4, 8, 2)}), 9);
  EXPECT_EQ(price.paid_devices, 16);
  EXPECT_DOUBLE_EQ(price.usd, 32);
}

TEST(Money, the_nodes_that_hold_the_ranks_are_paid) {
  const spec::Cluster cluster = cluster_of({group_of(2, 8, 5), group_of(4, 4, 1)});
  EXPECT_DOUBLE_EQ(hourly_price(cluster, 12).usd, 16 * 5);
  EXPECT_DOUBLE_EQ(hourly_price(cluster, 16).usd, 16 * 5);
  EXPECT_DOUBLE_EQ(hourly_price(cluster, 17).usd, 16 * 5 + 4);
  EXPECT_DOUBLE_EQ(hourly_price(cluster, 32).usd, 16 * 5 + 16);
}

TEST(Money, nothing_costs_nothing_and_what_never_ends_is_infinite) {
  const spec::Cluster cluster = cluster_of({group_of(1, 8, 1)});
  EXPECT_EQ(cost_of(cluster, 8, 0, 100, 1), plan::Cost{});
  EXPECT_TRUE(std::isinf(cost_of(cluster, 8, 1e9, 0, 1).usd));
  EXPECT_TRUE(std::isinf(cost_of(cluster, 8, 1e9, 100, 0).days));
}

TEST(Money, more_devices_than_there_are_is_a_bug_of_ours) {
  EXPECT_THROW(hourly_price(cluster_of({group_of(1, 8, 1)}), 9), InternalError);
}

TEST(Money, faster_is_sooner_and_cheaper) {
  const spec::Cluster cluster = cluster_of({group_of(4, 8, 3)});
  const plan::Cost slow = cost_of(cluster, 32, 1e12, 1e5, 0.9), fast = cost_of(cluster, 32, 1e12, 2e5, 0.9);
  EXPECT_DOUBLE_EQ(slow.usd, 2 * fast.usd);
  EXPECT_LT(cost_of(cluster, 32, 1e12, 1e5, 0.99).usd, slow.usd);
}

}  // namespace
}  // namespace lockstep::planner
