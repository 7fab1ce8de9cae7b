// Goodput: what the closed form knows agrees with it, seconds add up, and policies do what they say.
#include "lockstep/sim/failures/goodput.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/planner/cadence.h"

namespace lockstep::sim {
namespace {

constexpr double kDay = 86400.0;

double mean_goodput(const std::vector<Outcome>& outcomes) {
  double sum = 0;
  for (const Outcome& outcome : outcomes) sum += outcome.goodput();
  return sum / static_cast<double>(outcomes.size());
}

void expect_adds_up(const Outcome& outcome) {
  EXPECT_NEAR(outcome.useful + outcome.lost + outcome.stalled + outcome.recovering + outcome.waiting + outcome.shrunk,
              outcome.total, 1e-6 * outcome.total);
}

TEST(Goodput, agrees_with_the_closed_form_for_independent_failures) {
  for (const double mean : {1800.0, 7200.0, 86400.0}) {
    for (const double interval : {300.0, 1800.0}) {
      RunOnNodes run;
      run.nodes = run.spares = 100;
      run.interval_seconds = interval;
      run.stall_seconds = 10;
      run.background_seconds = 60;
      run.disk_restart_seconds = 300;
      const auto source = independent_faults(1 / mean / 100, RepairTimes::constant(1));
      const double simulated = mean_goodput(study(*source, run, 90 * kDay, 50, 1));
      EXPECT_NEAR(simulated / planner::goodput_of(interval, 10, 60, 300, 1 / mean), 1.0, 0.01)
          << mean << " s between failures, checkpoints every " << interval;
    }
  }
}

FaultTrace faults(std::vector<Fault> list, double seconds = 10000) { return {10, seconds, std::move(list)}; }

RunOnNodes four_nodes() {
  RunOnNodes run;
  run.nodes = 4;
  run.interval_seconds = 1000;
  run.stall_seconds = 10;
  run.background_seconds = 100;
  run.disk_restart_seconds = 50;
  run.memory_restart_seconds = 5;
  run.resize_seconds = 7;
  return run;
}

TEST(Goodput, of_a_run_without_faults_loses_stalls_only) {
  const Outcome outcome = run_through(faults({}), four_nodes());
  EXPECT_NEAR(outcome.stalled, 100, 1e-9);
  EXPECT_NEAR(outcome.goodput(), 0.99, 1e-9);
  expect_adds_up(outcome);
}

// Checkpoints begin at 990, 1990, ...; that of 1990 is durable at 2100.
TEST(Goodput, goes_back_to_the_newest_durable_checkpoint) {
  RunOnNodes run = four_nodes();
  run.spares = 1;
  Outcome outcome = run_through(faults({{2099, 9e9, 0}}), run);
  EXPECT_NEAR(outcome.lost, 2099 - 1000 - 10, 1e-6);
  EXPECT_EQ(outcome.recovering, 50);
  EXPECT_EQ(outcome.from_disk, 1);
  outcome = run_through(faults({{2101, 9e9, 0}}), run);
  EXPECT_NEAR(outcome.lost, 101, 1e-6);
  expect_adds_up(outcome);
}

TEST(Goodput, comes_back_from_memory_unless_a_node_and_the_one_with_its_copy_are_gone) {
  RunOnNodes run = four_nodes();
  run.spares = 2;
  run.from_memory = true;
  run.memory_lost_seconds = 2;
  const Outcome one = run_through(faults({{500, 9e9, 0}}), run);
  EXPECT_EQ(one.lost, 2);
  EXPECT_EQ(one.recovering, 5);
  const Outcome apart = run_through(faults({{500, 9e9, 0}, {501, 9e9, 2}}), run);
  EXPECT_EQ(apart.lost, 2);
  EXPECT_EQ(apart.interruptions, 1);
  EXPECT_EQ(apart.recovering, 6);
  const Outcome neighbours = run_through(faults({{500, 9e9, 0}, {501, 9e9, 1}}), run);
  EXPECT_EQ(neighbours.lost, 500);
  EXPECT_EQ(neighbours.from_disk, 1);
  EXPECT_EQ(neighbours.recovering, 51);
  for (const Outcome& outcome : {one, apart, neighbours}) expect_adds_up(outcome);
}

// State that came back from memory is in no checkpoint yet: the next loss from disk takes it along.
TEST(Goodput, does_not_forget_what_no_checkpoint_has) {
  RunOnNodes run = four_nodes();
  run.spares = 3;
  run.from_memory = true;
  const Outcome outcome = run_through(faults({{500, 9e9, 0}, {605, 9e9, 1}, {606, 9e9, 2}}), run);
  EXPECT_NEAR(outcome.lost, 500 + 100, 1e-6);
  expect_adds_up(outcome);
}

TEST(Goodput, shrinks_and_grows_or_waits) {
  RunOnNodes run = four_nodes();
  run.from_memory = true;
  run.stall_seconds = 0;
  const FaultTrace two_hours = faults({{1000, 3000, 3}});
  const Outcome shrinks = run_through(two_hours, run);
  EXPECT_NEAR(shrinks.shrunk, (3000 - 1012) / 4.0, 1e-6);
  EXPECT_EQ(shrinks.resizes, 2);
  EXPECT_EQ(shrinks.recovering, 12 + 7);
  run.when_short = WhenShort::kWait;
  const Outcome waits = run_through(two_hours, run);
  EXPECT_EQ(waits.waiting, 2000);
  EXPECT_EQ(waits.recovering, 5);
  run.spares = 1;
  const Outcome spare = run_through(two_hours, run);
  EXPECT_EQ(spare.waiting, 0);
  for (const Outcome& outcome : {shrinks, waits, spare}) expect_adds_up(outcome);
  EXPECT_GT(spare.goodput(), shrinks.goodput());
  EXPECT_GT(shrinks.goodput(), waits.goodput());
}

TEST(Goodput, leaves_whole_replicas_out) {
  RunOnNodes run = four_nodes();
  run.nodes_per_replica = 2;
  run.from_memory = true;
  run.stall_seconds = run.resize_seconds = run.memory_restart_seconds = 0;
  const Outcome outcome = run_through(faults({{0, 9e9, 3}}), run);
  EXPECT_NEAR(outcome.shrunk, 5000, 1e-6);
}

TEST(Goodput, is_the_same_for_any_number_of_threads_and_adds_up_in_any_weather) {
  RunOnNodes run = four_nodes();
  run.nodes = 64;
  run.nodes_per_replica = 4;
  run.spares = 3;
  run.from_memory = true;
  const auto source = independent_faults(1.0 / (20 * kDay), RepairTimes::log_normal(20 * 3600.0, 133 * 3600.0));
  const auto one = study(*source, run, 30 * kDay, 20, 5, 1), three = study(*source, run, 30 * kDay, 20, 5, 3);
  for (std::size_t i = 0; i < one.size(); ++i) {
    expect_adds_up(one[i]);
    EXPECT_EQ(one[i].useful, three[i].useful);
    EXPECT_GT(one[i].interruptions, 20);
  }
}

}  // namespace
}  // namespace lockstep::sim
