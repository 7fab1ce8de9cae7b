#include "lockstep/elastic/recovery.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace lockstep::elastic {
namespace {

using Kind = Action::Kind;

// A Recovery and the workers that carry its actions out, at a time that the test sets.
class World {
 public:
  explicit World(const RecoveryLimits& limits, int nodes = 1) : recovery(limits, 0.0) {
    for (int node = 0; node < nodes; ++node) recovery.node_joined(node, 0.0);
  }

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
  World world({.ranks_per_node = 2, .restarts = 1});
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
  World world({.ranks_per_node = 3, .standby = 1, .restarts = 2});
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
  EXPECT_TRUE(of_kind(formed, Kind::kSpawn).empty()) << "the ranks need the cores for their first step";
  world.recovery.stepped(0, 1, 0);
  EXPECT_EQ(of_kind(world.decide(), Kind::kSpawn).size(), 1u) << "the next standby";
}

TEST(Recovery, the_next_standby_does_not_wait_for_ever_for_a_slow_step) {
  World world({.ranks_per_node = 2, .standby = 1, .restarts = 2});
  world.decide();
  world.die(1);
  world.leave(0);
  EXPECT_TRUE(of_kind(world.decide(), Kind::kSpawn).empty());
  world.now = 11;
  EXPECT_EQ(of_kind(world.decide(), Kind::kSpawn).size(), 1u);
}

TEST(Recovery, without_a_standby_a_new_process_is_started_before_the_survivors_have_left) {
  World world({.ranks_per_node = 2, .restarts = 1});
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
  World world({.ranks_per_node = 2, .restarts = 1});
  world.decide();
  world.leave(0);
  world.leave(1);
  const auto formed = world.decide();
  EXPECT_EQ(of_kind(formed, Kind::kJoin).size(), 2u);
  EXPECT_TRUE(of_kind(formed, Kind::kSpawn).empty());
}

TEST(Recovery, a_death_while_the_survivors_leave_is_recovered_from_too) {
  World world({.ranks_per_node = 3, .restarts = 1});
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
  World world({.ranks_per_node = 2, .restarts = 1, .leave_seconds = 10});
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
  World world({.ranks_per_node = 2, .restarts = 1, .silence_seconds = 5});
  world.decide();
  world.now = 4;
  world.recovery.heard(0, world.now);
  world.now = 6;
  const auto killed = of_kind(world.decide(), Kind::kKill);
  ASSERT_EQ(killed.size(), 1u);
  EXPECT_EQ(killed[0].rank, 1);
}

TEST(Recovery, ranks_that_live_but_make_no_step_are_told_to_leave) {
  World world({.ranks_per_node = 2, .restarts = 1, .silence_seconds = 1e9, .stall_seconds = 60});
  world.decide();
  world.now = 30;
  world.recovery.stepped(0, 1, world.now);
  world.now = 80;
  EXPECT_TRUE(world.decide().empty());
  world.now = 91;
  const auto stalled = world.decide();
  EXPECT_EQ(of_kind(stalled, Kind::kAbort).size(), 2u);
  EXPECT_EQ(of_kind(stalled, Kind::kStacks).size(), 2u) << "where they are is written down first";
}

TEST(Recovery, ranks_that_get_on_with_something_else_are_left_alone) {
  World world({.ranks_per_node = 1, .restarts = 1, .silence_seconds = 1e9, .stall_seconds = 60});
  world.decide();
  world.recovery.stepped(0, 1, world.now);
  for (world.now = 50; world.now < 400; world.now += 50) {
    world.recovery.progressed(0, world.now);  // a long evaluation
    EXPECT_TRUE(world.decide().empty());
  }
  world.now = 411;
  EXPECT_EQ(of_kind(world.decide(), Kind::kAbort).size(), 1u);
}

TEST(Recovery, the_first_step_of_a_generation_has_the_time_that_disks_take) {
  World world(
      {.ranks_per_node = 1, .restarts = 1, .silence_seconds = 1e9, .stall_seconds = 60, .first_step_seconds = 300});
  world.decide();
  world.now = 290;
  EXPECT_TRUE(world.decide().empty());
  world.recovery.stepped(0, 1, world.now);
  world.now = 349;
  EXPECT_TRUE(world.decide().empty());
  world.now = 351;
  EXPECT_EQ(of_kind(world.decide(), Kind::kAbort).size(), 1u);
}

TEST(Recovery, gives_up_when_the_restarts_are_used_up) {
  World world({.ranks_per_node = 1, .restarts = 1});
  world.decide();
  world.recovery.stepped(0, 1, 0);
  world.die(0);
  EXPECT_EQ(of_kind(world.decide(), Kind::kJoin).size(), 1u);
  world.recovery.stepped(1, 2, 0);
  world.die(1);
  const auto actions = world.decide();
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(actions[0].kind, Kind::kGiveUp);
  EXPECT_NE(actions[0].reason.find("restarted 1 time"), std::string::npos);
}

TEST(Recovery, gives_up_on_ranks_that_fail_again_and_again_at_one_step) {
  World world({.ranks_per_node = 1, .restarts = 100, .restarts_at_one_step = 3});
  world.decide();
  int failures = 0;
  for (int worker = 0; worker < 10; ++worker) {
    world.die(worker);
    world.now += 100;  // it waits longer and longer
    ++failures;
    const auto actions = world.decide();
    if (!of_kind(actions, Kind::kGiveUp).empty()) break;
  }
  EXPECT_EQ(failures, 4);
}

TEST(Recovery, gives_up_when_no_process_gets_ready_to_replace_a_rank) {
  World world({.ranks_per_node = 2, .restarts = 100});
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
  World world({.ranks_per_node = 1, .standby = 1, .restarts = 100});
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
  World world({.ranks_per_node = 2, .restarts = 5});
  world.decide();
  world.recovery.ended(0, false, false, "the job is wrong", 0);
  EXPECT_EQ(of_kind(world.decide(), Kind::kGiveUp).size(), 1u);
}

TEST(Recovery, nobody_is_replaced_once_a_rank_has_done_all_its_work) {
  World world({.ranks_per_node = 2, .restarts = 5});
  world.decide();
  world.recovery.ended(0, true, true, "", 0);
  EXPECT_TRUE(world.decide().empty());
  world.die(1);
  EXPECT_EQ(of_kind(world.decide(), Kind::kGiveUp).size(), 1u);
}

TEST(Recovery, measures_from_the_failure_to_the_next_step) {
  World world({.ranks_per_node = 2, .restarts = 5});
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
  World world({.ranks_per_node = 2, .restarts = 5});
  world.decide();
  world.leave(0);
  world.leave(1);
  world.decide();
  ASSERT_EQ(world.recovery.generation(), 2);
  world.recovery.left(0, 1, "late", 0);
  EXPECT_TRUE(world.decide().empty());
}

TEST(Recovery, failures_in_a_row_wait_longer_and_longer) {
  World world({.ranks_per_node = 1, .restarts = 100, .restarts_at_one_step = 3});
  world.decide();
  world.die(0);
  EXPECT_EQ(of_kind(world.decide(), Kind::kJoin).size(), 1u) << "the first is replaced at once";
  world.die(1);
  EXPECT_TRUE(of_kind(world.decide(), Kind::kJoin).empty());
  world.now = 1;
  EXPECT_EQ(of_kind(world.decide(), Kind::kJoin).size(), 1u);
}

// Two ranks on each of some nodes.
RecoveryLimits nodes_of_two(std::vector<int> counts) {
  return {.ranks_per_node = 2, .node_counts = std::move(counts), .standby = 1, .restarts = 5, .wait_seconds = 3};
}

std::map<int, int> ranks_by_node(const std::vector<Action>& actions) {  // the first rank of each
  std::map<int, int> first;
  for (const Action& action : of_kind(actions, Kind::kJoin)) {
    const auto [entry, added] = first.emplace(action.node, action.rank);
    entry->second = std::min(entry->second, action.rank);
  }
  return first;
}

void leave_all(World& world, std::vector<int> lost_nodes = {}) {
  for (const auto& [worker, rank] : world.ranks) {
    const int node = world.recovery.node_of(worker);
    if (std::find(lost_nodes.begin(), lost_nodes.end(), node) == lost_nodes.end()) world.leave(worker);
  }
}

TEST(RecoveryOfNodes, the_first_generation_waits_for_every_node) {
  World world(nodes_of_two({3, 2}), 2);
  EXPECT_TRUE(world.decide().empty());
  world.recovery.node_joined(2, 1.0);
  EXPECT_EQ(ranks_by_node(world.decide()), (std::map<int, int>{{0, 0}, {1, 2}, {2, 4}}));
}

TEST(RecoveryOfNodes, without_the_last_node_it_begins_smaller_after_a_while) {
  World world(nodes_of_two({3, 2}), 2);
  world.decide();
  world.now = 121;
  EXPECT_EQ(ranks_by_node(world.decide()), (std::map<int, int>{{0, 0}, {1, 2}}));
}

TEST(RecoveryOfNodes, a_spare_node_takes_the_ranks_of_a_lost_one) {
  World world(nodes_of_two({2, 1}), 3);
  ASSERT_EQ(ranks_by_node(world.decide()), (std::map<int, int>{{0, 0}, {1, 2}}));
  world.recovery.node_lost(0, "node 0 is lost", 1.0);
  EXPECT_EQ(of_kind(world.decide(), Kind::kAbort).size(), 2u);
  leave_all(world, {0});
  EXPECT_EQ(ranks_by_node(world.decide()), (std::map<int, int>{{2, 0}, {1, 2}}));
  EXPECT_EQ(world.recovery.world(), 4);
}

TEST(RecoveryOfNodes, without_a_spare_the_run_waits_a_moment_and_goes_on_smaller) {
  World world(nodes_of_two({3, 2, 1}), 3);
  world.decide();
  world.recovery.node_lost(1, "node 1 is lost", 0.0);
  world.decide();
  leave_all(world, {1});
  EXPECT_TRUE(of_kind(world.decide(), Kind::kJoin).empty());
  world.now = 3.5;
  EXPECT_EQ(ranks_by_node(world.decide()), (std::map<int, int>{{0, 0}, {2, 2}}));
  EXPECT_EQ(world.recovery.world(), 4);
  EXPECT_EQ(world.recovery.restarts(), 1);
}

TEST(RecoveryOfNodes, the_run_grows_when_the_node_is_back_and_that_is_not_a_failure) {
  World world(nodes_of_two({2, 1}), 2);
  world.decide();
  world.recovery.node_lost(1, "node 1 is lost", 0.0);
  world.decide();
  leave_all(world, {1});
  world.now = 4;
  world.decide();
  ASSERT_EQ(world.recovery.world(), 2);
  world.recovery.node_joined(1, 5.0);
  const auto growing = world.decide();  // its processes are ready at once
  EXPECT_EQ(of_kind(growing, Kind::kAbort).size(), 2u);
  leave_all(world, {1});
  EXPECT_EQ(ranks_by_node(world.decide()), (std::map<int, int>{{0, 0}, {1, 2}}));
  EXPECT_EQ(world.recovery.restarts(), 1);
}

TEST(RecoveryOfNodes, with_too_few_nodes_for_any_layout_it_gives_up) {
  World world(nodes_of_two({3, 2}), 3);
  world.decide();
  world.recovery.node_lost(1, "node 1 is lost", 0.0);
  world.recovery.node_lost(2, "node 2 is lost", 0.0);
  world.decide();
  leave_all(world, {1, 2});
  world.now = 100;
  EXPECT_TRUE(world.decide().empty());
  world.now = 300;
  EXPECT_EQ(of_kind(world.decide(), Kind::kGiveUp).size(), 1u);
}

TEST(RecoveryOfNodes, another_one_learns_of_a_generation_from_its_ranks) {
  World world(nodes_of_two({3, 2}), 0);
  world.recovery = Recovery(nodes_of_two({3, 2}), {}, "the first agent is lost", 10.0);  // it had said nothing yet
  world.now = 10;
  for (const int node : {1, 2}) {
    world.recovery.node_joined(node, 10.0);
    for (const int slot : {0, 1}) {
      const int worker = node * 1'000'000 + slot;
      world.recovery.adopt(worker, node, 2 * node + slot, 1, Recovery::Doing::kMember, 10.0);
      world.ranks[worker] = 2 * node + slot;
    }
  }
  EXPECT_EQ(of_kind(world.decide(), Kind::kAbort).size(), 4u);
  leave_all(world);
  world.now = 200;
  EXPECT_EQ(of_kind(world.decide(), Kind::kJoin).size(), 4u);
  EXPECT_EQ(world.recovery.generation(), 2);
}

TEST(RecoveryOfNodes, another_one_goes_on_with_the_workers_of_a_lost_one) {
  World first(nodes_of_two({3, 2}), 3);
  first.decide();
  first.recovery.stepped(1, 40, 0.0);
  World second(nodes_of_two({3, 2}), 0);
  second.recovery = Recovery(nodes_of_two({3, 2}), first.recovery.past(), "the first agent is lost", 10.0);
  second.now = 10;
  for (const auto& [worker, rank] : first.ranks) {
    const int node = first.recovery.node_of(worker);
    if (node == 0) continue;
    second.recovery.node_joined(node, 10.0);
    second.recovery.adopt(worker, node, rank, 1, node == 1 ? Recovery::Doing::kMember : Recovery::Doing::kWaiting,
                          10.0);
    second.ranks[worker] = rank;
  }
  EXPECT_EQ(of_kind(second.decide(), Kind::kAbort).size(), 2u);
  leave_all(second);
  second.now = 14;
  EXPECT_EQ(ranks_by_node(second.decide()), (std::map<int, int>{{1, 0}, {2, 2}}));
  EXPECT_EQ(second.recovery.generation(), 2);
  EXPECT_EQ(second.recovery.furthest_step(), 40);
}

TEST(Recovery, knows_whether_the_run_could_do_without_a_node) {
  World world({.ranks_per_node = 1, .node_counts = {3, 2}, .restarts = 1}, 3);
  world.decide();
  EXPECT_TRUE(world.recovery.can_go_on_without(2));
  world.recovery.node_lost(2, "is lost", 1.0);
  EXPECT_FALSE(world.recovery.can_go_on_without(1));  // no layout of the run does with one
  world.recovery.node_joined(2, 2.0);
  EXPECT_TRUE(world.recovery.can_go_on_without(1));
  world.recovery.stop_replacing();
  EXPECT_FALSE(world.recovery.can_go_on_without(1));
}

TEST(Recovery, does_without_a_node_only_while_restarts_are_left) {
  World world({.ranks_per_node = 1, .node_counts = {1}, .restarts = 0}, 2);
  world.decide();
  const int used = world.recovery.nodes().at(0);
  EXPECT_FALSE(world.recovery.can_go_on_without(used));
  EXPECT_TRUE(world.recovery.can_go_on_without(1 - used));  // spare: its loss is not a failure
}

TEST(Recovery, where_fewer_nodes_do_not_fit_the_run_waits_and_tells_why) {
  World world({.ranks_per_node = 1,
               .node_counts = {2},
               .too_few = {{1, "it needs 30 GiB per rank and there are 24"}},
               .restarts = 3,
               .gather_seconds = 100,
               .wait_seconds = 2,
               .silence_seconds = 1e9,
               .stall_seconds = 1e9},
              2);
  world.decide();
  ASSERT_EQ(world.recovery.generation(), 1);
  world.now = 10;
  world.recovery.node_lost(1, "node 1 is lost", world.now);
  world.decide();
  world.leave(0);
  world.now = 20;
  EXPECT_TRUE(of_kind(world.decide(), Kind::kJoin).empty()) << "one node is not enough";
  world.recovery.node_joined(1, world.now);
  EXPECT_EQ(of_kind(world.decide(), Kind::kJoin).size(), 2u);
}

TEST(Recovery, what_is_missing_is_told_once_and_again_when_it_is_given_up) {
  World world({.ranks_per_node = 1,
               .node_counts = {2},
               .too_few = {{1, "it needs 30 GiB per rank and there are 24"}},
               .restarts = 3,
               .gather_seconds = 100,
               .silence_seconds = 1e9,
               .stall_seconds = 1e9},
              2);
  world.decide();
  world.recovery.node_lost(1, "node 1 is lost", world.now);
  std::vector<Action> told = of_kind(world.decide(), Kind::kTell);
  world.leave(0);
  for (world.now = 1; world.now < 90; world.now += 10) {
    for (const Action& more : of_kind(world.decide(), Kind::kTell)) told.push_back(more);
  }
  ASSERT_EQ(told.size(), 1u);
  EXPECT_NE(told[0].reason.find("1 of 2 nodes are there and the run waits up to 100 s"), std::string::npos);
  EXPECT_NE(told[0].reason.find("it needs 30 GiB per rank and there are 24"), std::string::npos);
  world.now = 101;
  const auto given_up = of_kind(world.decide(), Kind::kGiveUp);
  ASSERT_EQ(given_up.size(), 1u);
  EXPECT_NE(given_up[0].reason.find("it needs 30 GiB per rank and there are 24"), std::string::npos);
}

// Ranks of somebody's program: they do not leave by themselves, they are ended.
RecoveryLimits whole_generations(int ranks, int restarts) {
  return {.ranks_per_node = ranks, .restarts = restarts, .restarts_at_one_step = 1000, .whole = true};
}

TEST(Recovery, of_whole_generations_every_rank_is_a_new_process) {
  World world(whole_generations(3, 2));
  world.decide();
  world.die(1);
  const auto broken = world.decide();
  EXPECT_EQ(of_kind(broken, Kind::kAbort).size(), 2u);
  EXPECT_TRUE(of_kind(broken, Kind::kJoin).empty()) << "the others have not ended";
  world.die(0, "was ended");
  world.die(2, "was ended");
  const auto formed = of_kind(world.decide(), Kind::kJoin);
  ASSERT_EQ(formed.size(), 3u);
  for (const Action& action : formed) EXPECT_GE(action.worker, 3);
  EXPECT_EQ(world.recovery.restarts(), 1);
}

TEST(Recovery, of_whole_generations_a_rank_that_was_done_runs_again_with_those_that_failed_later) {
  World world(whole_generations(2, 1));
  world.decide();
  world.recovery.ended(0, true, true, "", 1.0);
  world.die(1);
  const auto formed = of_kind(world.decide(), Kind::kJoin);
  EXPECT_EQ(formed.size(), 2u);
}

TEST(Recovery, of_whole_generations_an_end_with_success_after_the_abort_is_not_the_end_of_the_run) {
  World world(whole_generations(2, 1));
  world.decide();
  world.die(0);
  world.decide();
  world.recovery.ended(1, true, true, "", 1.0);
  EXPECT_EQ(of_kind(world.decide(), Kind::kJoin).size(), 2u);
}

TEST(Recovery, a_generation_that_lived_long_enough_ends_a_row_of_failures) {
  RecoveryLimits limits = whole_generations(1, 100);
  limits.proven_seconds = 5.0;
  World world(limits);
  world.decide();
  for (int worker = 0; worker < 3; ++worker) {
    world.now += 6.0;
    world.die(worker);
    EXPECT_EQ(of_kind(world.decide(), Kind::kJoin).size(), 1u) << "at once";
  }
  world.now += 1.0;
  world.die(3);
  EXPECT_TRUE(of_kind(world.decide(), Kind::kJoin).empty()) << "a pause, for one that fails at once";
  world.now += 1.0;
  EXPECT_EQ(of_kind(world.decide(), Kind::kJoin).size(), 1u);
}

}  // namespace
}  // namespace lockstep::elastic
