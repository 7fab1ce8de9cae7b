#include "lockstep/engine/snapshot_cadence.h"

#include <gtest/gtest.h>

namespace lockstep::engine {
namespace {

SnapshotCadence::Figures own(SnapshotCadence::Figures mine) { return mine; }

// Plays `steps` steps of a second; one with a snapshot in flight takes `cost` longer, `stall` of it waited.
void play(SnapshotCadence& cadence, int steps, double cost, double stall, const SnapshotCadence::Agree& agree = own) {
  std::int64_t since = 0;
  bool after = true;  // the first one is taken before the first step
  for (int i = 0; i < steps; ++i) {
    cadence.stepped(after ? 1.0 + cost : 1.0, after, stall, agree);
    after = ++since >= cadence.every();
    if (after) since = 0;
  }
}

TEST(SnapshotCadence, takes_one_in_every_step_where_that_is_cheap) {
  SnapshotCadence cadence(spec::Snapshots::kAuto);
  play(cadence, 40, 0.01, 0.005);
  EXPECT_EQ(cadence.every(), 1);
}

TEST(SnapshotCadence, keeps_the_cost_below_its_share_of_the_time) {
  SnapshotCadence cadence(spec::Snapshots::kAuto);
  play(cadence, 40, 0.30, 0.1);
  EXPECT_EQ(cadence.every(), 15);
  EXPECT_LE(cadence.cost_share(), SnapshotCadence::kShare + 1e-9);
}

TEST(SnapshotCadence, does_not_take_noise_for_a_cost_that_a_snapshot_cannot_have) {
  SnapshotCadence cadence(spec::Snapshots::kAuto);
  cadence.took_alone(0.015);
  play(cadence, 40, 0.30, 0.005);
  EXPECT_EQ(cadence.every(), 1);
}

TEST(SnapshotCadence, takes_them_rarer_when_they_become_dear) {
  SnapshotCadence cadence(spec::Snapshots::kAuto);
  play(cadence, 40, 0.01, 0.005);
  play(cadence, 100, 0.10, 0.10);
  EXPECT_EQ(cadence.every(), 5);
}

TEST(SnapshotCadence, does_what_the_job_says) {
  SnapshotCadence cadence(3);
  play(cadence, 100, 5.0, 5.0);
  EXPECT_EQ(cadence.every(), 3);
}

TEST(SnapshotCadence, the_slowest_rank_decides) {
  SnapshotCadence cadence(spec::Snapshots::kAuto);
  play(cadence, 40, 0.01, 0.005, [](auto) { return SnapshotCadence::Figures{0.2, 1.0}; });
  EXPECT_EQ(cadence.every(), 10);
}

}  // namespace
}  // namespace lockstep::engine
