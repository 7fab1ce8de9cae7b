#include "lockstep/elastic/recovery.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lockstep::elastic {
namespace {

using Kind = Action::Kind;

// A Recovery and the workers that carry its actions out, at a time that the test sets.
class World {
 public:
  explicit World(const RecoveryLimits& limits) : recovery(limits, 0.0) {}

  // What it decides now. New workers are ready at once unless `slow`.
  std::vector<Action> decide() {
    std::vector<Action> all;
    for (bool more = true; more;) {
      more = false;
      for (const Action& action : recovery.decide(now)) {
        all.push_back(action);
        if (action.kind == Kind::kSpawn && !slow) recovery.ready(action.worker, now), more = true;
        if (action.kind == Kind::kJoin) ranks[action.worker] = action.rank;
      }
    }
    return all;
  }
  void die(int worker, const std::string& why = "was killed") { recovery.ended(worker, false, true, why, now); }
  void leave(int worker) { recovery.left(worker, recovery.generation(), "lost a peer", now); }

  Recovery recovery;
  double now = 0.0;
  bool slow = false;
  std::map<int, int> ranks;  // by worker, as joined last
};

std::vector<Action> of_kind(const std::vector<Action>& actions, Kind kind) {
  std::vector<Action> found;
  std::copy_if(actions.begin(), actions.end(), std::back_inserter(found),
               [&](const Action& a) { return a.kind == kind; });
  return found;
}

TEST(Recovery, joins_the_first_generation_when_every_rank_is_ready) {
  World world({.world = 2, .restarts = 1});
  world.slow = true;
  const auto started = world.decide();
  ASSERT_EQ(of_kind(started, Kind::kSpawn).size(), 2u);
  world.recovery.ready(0, 0.1);
  EXPECT_TRUE(of_kind(world.decide(), Kind::kJoin).empty());
  world.recovery.ready(1, 0.2);
  const auto joined = of_kind(world.decide(), Kind::kJoin);
  ASSERT_EQ(joined.size(), 2u);
  EXPECT_EQ(joined[1].rank, 1);
  EXPECT_EQ(joined[1].generation, 1);
}

TEST(Recovery, a_standby_takes_the_dead_ranks_place_when_the_survivors_have_left) {
  World world({.world = 3, .standby = 1, .restarts = 2});
  world.decide();
  ASSERT_EQ(world.ranks, (std::map<int, int>{{0, 0}, {1, 1}, {2, 2}}));
  world.die(1);
  const auto broken = world.decide();
  EXPECT_EQ(of_kind(broken, Kind::kAbort).size(), 2u);
  EXPECT_TRUE(of_kind(broken, Kind::kJoin).empty()) << "survivors are still in the old generation";
  world.leave(0);
  world.leave(2);
  const auto formed = world.decide();
  ASSERT_EQ(of_kind(formed, Kind::kJoin).size(), 3u);
  EXPECT_EQ(world.ranks.at(3), 1);
  EXPECT_EQ(world.recovery.generation(), 2);
  EXPECT_EQ(of_kind(formed, Kind::kSpawn).size(), 1u) << "the next standby";
}

TEST(Recovery, without_a_standby_a_new_process_is_started_before_the_survivors_have_left) {
  World world({.world = 2, .restarts = 1});
  world.decide();
  world.slow = true;
  world.die(0);
  EXPECT_EQ(of_kind(world.decide(), Kind::kSpawn).size(), 1u);
  world.leave(1);
  EXPECT_TRUE(of_kind(world.decide(), Kind::kSpawn).empty()) << "one is on its way";
  world.recovery.ready(2, 1.0);
  EXPECT_EQ(of_kind(world.decide(), Kind::kJoin).size(), 2u);
  EXPECT_EQ(world.ranks.at(2), 0);
}

TEST(Recovery, ranks_that_lost_each_other_form_again_without_a_new_process) {
  World world({.world = 2, .restarts = 1});
  world.decide();
  world.leave(0);
  world.leave(1);
  const auto formed = world.decide();
  EXPECT_EQ(of_kind(formed, Kind::kJoin).size(), 2u);
  EXPECT_TRUE(of_kind(formed, Kind::kSpawn).empty());
}

TEST(Recovery, a_death_while_the_survivors_leave_is_recovered_from_too) {
  World world({.world = 3, .restarts = 1});
  world.decide();
  world.die(0);
  world.decide();
  world.die(1);
  world.decide();
  world.leave(2);
  EXPECT_EQ(of_kind(world.decide(), Kind::kJoin).size(), 3u);
  EXPECT_EQ(world.recovery.generation(), 2);
}

TEST(Recovery, a_survivor_that_does_not_leave_is_killed_and_replaced) {
  World world({.world = 2, .restarts = 1, .leave_seconds = 10});
  world.decide();
  world.die(0);
  world.decide();
  world.now = 9;
  EXPECT_TRUE(of_kind(world.decide(), Kind::kKill).empty());
  world.now = 11;
  const auto killed = of_kind(world.decide(), Kind::kKill);
  ASSERT_EQ(killed.size(), 1u);
  EXPECT_EQ(killed[0].worker, 1);
  world.die(1);
  EXPECT_EQ(of_kind(world.decide(), Kind::kJoin).size(), 2u);
}

TEST(Recovery, a_rank_without_a_sign_of_life_is_killed) {
  World world({.world = 2, .restarts = 1, .silence_seconds = 5});
  world.decide();
  world.now = 4;
  world.recovery.heard(0, world.now);
  world.now = 6;
  const auto killed = of_kind(world.decide(), Kind::kKill);
  ASSERT_EQ(killed.size(), 1u);
  EXPECT_EQ(killed[0].rank, 1);
}

TEST(Recovery, ranks_that_live_but_make_no_step_are_told_to_leave) {
  World world({.world = 2, .restarts = 1, .silence_seconds = 1e9, .stall_seconds = 60});
  world.decide();
  world.now = 30;
  world.recovery.stepped(0, 1, world.now);
  world.now = 80;
  EXPECT_TRUE(world.decide().empty());
  world.now = 91;
  EXPECT_EQ(of_kind(world.decide(), Kind::kAbort).size(), 2u);
}

TEST(Recovery, gives_up_when_the_restarts_are_used_up) {
  World world({.world = 1, .restarts = 1});
  world.decide();
  world.recovery.stepped(0, 1, 0);
  world.die(0);
  EXPECT_EQ(of_kind(world.decide(), Kind::kJoin).size(), 1u);
  world.recovery.stepped(1, 2, 0);
  world.die(1);
  const auto actions = world.decide();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, Kind::kGiveUp);
  EXPECT_NE(actions[0].reason.find("restarted 1 times"), std::string::npos);
}

TEST(Recovery, gives_up_on_ranks_that_fail_again_and_again_at_one_step) {
  World world({.world = 1, .restarts = 100, .restarts_at_one_step = 3});
  world.decide();
  int failures = 0;
  for (int worker = 0; worker < 10; ++worker) {
    world.die(worker);
    ++failures;
    const auto actions = world.decide();
    if (!of_kind(actions, Kind::kGiveUp).empty()) break;
  }
  EXPECT_EQ(failures, 4);
}

TEST(Recovery, gives_up_when_no_process_gets_ready_to_replace_a_rank) {
  World world({.world = 2, .restarts = 100});
  world.decide();
  world.slow = true;
  world.die(1);
  world.leave(0);
  std::vector<Action> actions = world.decide();
  int started = 0;
  for (; started < 50 && of_kind(actions, Kind::kGiveUp).empty(); ++started) {
    ASSERT_EQ(of_kind(actions, Kind::kSpawn).size(), 1u);
    world.die(2 + started, "the library is gone");
    world.leave(0);
    actions = world.decide();
  }
  EXPECT_EQ(started, 4);
}

TEST(Recovery, a_run_goes_on_without_a_standby_that_cannot_be_started) {
  World world({.world = 1, .standby = 1, .restarts = 100});
  world.decide();
  world.slow = true;
  int started = 0;
  for (world.die(1); started < 50; ++started) {
    const auto actions = world.decide();
    EXPECT_TRUE(of_kind(actions, Kind::kGiveUp).empty());
    if (of_kind(actions, Kind::kSpawn).empty()) break;
    world.die(2 + started);
  }
  EXPECT_EQ(started, 4);
}

TEST(Recovery, what_another_process_would_not_do_better_ends_the_run) {
  World world({.world = 2, .restarts = 5});
  world.decide();
  world.recovery.ended(0, false, false, "the job is wrong", 0);
  EXPECT_EQ(of_kind(world.decide(), Kind::kGiveUp).size(), 1u);
}

TEST(Recovery, nobody_is_replaced_once_a_rank_has_done_all_its_work) {
  World world({.world = 2, .restarts = 5});
  world.decide();
  world.recovery.ended(0, true, true, "", 0);
  EXPECT_TRUE(world.decide().empty());
  world.die(1);
  EXPECT_EQ(of_kind(world.decide(), Kind::kGiveUp).size(), 1u);
}

TEST(Recovery, measures_from_the_failure_to_the_next_step) {
  World world({.world = 2, .restarts = 5});
  world.decide();
  world.recovery.stepped(0, 7, 0);
  world.now = 10;
  world.die(1);
  world.decide();
  world.leave(0);
  world.decide();
  world.now = 11.5;
  world.recovery.stepped(0, 8, world.now);
  EXPECT_EQ(world.recovery.recovery_seconds(), std::vector<double>{1.5});
  EXPECT_EQ(world.recovery.restarts(), 1);
}

TEST(Recovery, words_of_an_older_generation_are_not_heard) {
  World world({.world = 2, .restarts = 5});
  world.decide();
  world.leave(0);
  world.leave(1);
  world.decide();
  ASSERT_EQ(world.recovery.generation(), 2);
  world.recovery.left(0, 1, "late", 0);
  EXPECT_TRUE(world.decide().empty());
}

}  // namespace
}  // namespace lockstep::elastic
