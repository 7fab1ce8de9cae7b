#include "lockstep/report/incidents.h"

#include <gtest/gtest.h>

#include "lockstep/report/goodput.h"
#include "lockstep/report/memory_terms.h"
#include "lockstep/report/standing.h"
#include "made_up_run.h"

namespace lockstep::report {
namespace {

using telemetry::Event;
using telemetry::Level;

class RunsAsRecorded : public ::testing::Test {
 protected:
  RunFacts facts() { return read_run_facts(*run_.store(folder_), "last"); }
  MadeUpRun run_;
  TemporaryFolder folder_;
};

TEST_F(RunsAsRecorded, join_a_loss_and_its_recovery_into_one_incident) {
  const Incidents all = make_incidents(facts());
  ASSERT_EQ(all.incidents.size(), 1u);
  const Incident& failure = all.incidents[0];
  EXPECT_EQ(failure.kind, IncidentKind::kFailure);
  EXPECT_EQ(failure.ranks, (std::vector<int>{5}));
  EXPECT_EQ(failure.what, "rank 5 was killed");
  EXPECT_EQ(failure.began_at, MadeUpRun::kStart + 30.5);
  EXPECT_EQ(failure.ended_at, MadeUpRun::kStart + 36) << "when step 21 was done";
  EXPECT_EQ(failure.down_seconds, 5.5);
  EXPECT_EQ(failure.lost_steps, 2);
  EXPECT_NEAR(failure.lost_seconds, 2.0, 1e-9);
  ASSERT_EQ(all.checkpoints.size(), 1u);
  EXPECT_EQ(all.checkpoints[0].path, "/c/10");
}

TEST_F(RunsAsRecorded, take_the_agents_own_seconds_where_it_said_them) {
  RunFacts read = facts();
  read.run.summary["recovery_seconds"] = {4.25};
  EXPECT_EQ(make_incidents(read).incidents[0].down_seconds, 4.25);
  read.run.summary["recovery_seconds"] = {4.25, 1.0};  // of another one that is not recorded
  EXPECT_EQ(make_incidents(read).incidents[0].down_seconds, 5.5);
}

TEST_F(RunsAsRecorded, join_alerts_with_their_ends) {
  const auto alert = [](double at, const char* rule, const char* state) {
    return Event{MadeUpRun::kStart + at,
                 Level::kWarning,
                 "alert",
                 3,
                 30,
                 std::string(rule) + " " + state,
                 {{"rule", rule}, {"state", state}, {"cost_percent", 7.5}, {"fix", "lockstep diagnose last"}}};
  };
  run_.more = {alert(40, "straggler", "firing"), alert(41, "loss_spike", "firing"), alert(45, "straggler", "resolved"),
               alert(50, "straggler", "firing")};
  const Incidents all = make_incidents(facts());
  ASSERT_EQ(all.incidents.size(), 4u);
  EXPECT_EQ(all.incidents[1].rule, "straggler");
  EXPECT_EQ(all.incidents[1].ended_at, MadeUpRun::kStart + 45);
  EXPECT_EQ(all.incidents[1].cost_percent, 7.5);
  EXPECT_EQ(all.incidents[1].fix, "lockstep diagnose last");
  EXPECT_EQ(all.incidents[2].ended_at, 0.0) << "goes on";
  EXPECT_EQ(all.incidents[3].ended_at, 0.0);
  const auto json = to_json(all);
  EXPECT_TRUE(json.at("incidents")[3].at("ended_at").is_null());
}

TEST_F(RunsAsRecorded, tell_spikes_rollbacks_and_lost_records) {
  const double at = MadeUpRun::kStart + 50;
  run_.more = {Event{at, Level::kWarning, "spike", 0, 33, "loss 9"},
               Event{at + 1, Level::kInfo, "spike", 0, 34, "over"},
               Event{at + 2, Level::kWarning, "rollback", 0, 35, "back", {{"from_step", 35}, {"to_step", 30}}},
               Event{at + 3, Level::kWarning, "records_lost", 0, 36, "steps 35 to 36 have no record"},
               Event{at + 4, Level::kWarning, "chaos", 1, 37, "slow", {{"kind", "slow"}}},
               Event{at + 5, Level::kError, "failure", 2, -1, "out of memory"}};
  const Incidents all = make_incidents(facts());
  std::vector<std::string> kinds;
  for (const Incident& incident : all.incidents) kinds.emplace_back(to_string(incident.kind));
  EXPECT_EQ(kinds, (std::vector<std::string>{"failure", "loss", "rollback", "records", "health", "failure"}));
  EXPECT_EQ(all.incidents[1].details, (std::vector<std::string>{"over"}));
  EXPECT_EQ(all.incidents[2].lost_steps, 5);
  EXPECT_EQ(all.incidents[5].ended_at, 0.0) << "it ended the run";
}

TEST_F(RunsAsRecorded, account_for_every_second) {
  const Goodput goodput = make_goodput(facts());
  EXPECT_NEAR(goodput.elapsed_seconds, 60, 1e-9);
  EXPECT_NEAR(goodput.start_seconds, 10, 1e-6);
  EXPECT_NEAR(goodput.useful_seconds, 40 * 0.98, 1e-6);
  EXPECT_NEAR(goodput.checkpoint_seconds, 40 * 0.02, 1e-6);
  EXPECT_NEAR(goodput.recovery_seconds, 5.5, 1e-6);
  EXPECT_NEAR(goodput.lost_seconds, 2.0, 1e-6);
  EXPECT_NEAR(goodput.useful_seconds + goodput.checkpoint_seconds + goodput.lost_seconds + goodput.recovery_seconds +
                  goodput.start_seconds + goodput.other_seconds,
              goodput.elapsed_seconds, 1e-9);
  ASSERT_EQ(goodput.line.size(), 5u);
  EXPECT_EQ(goodput.line[0].period, Period::kStart);
  EXPECT_EQ(goodput.line[2].period, Period::kRecovery);
  for (std::size_t i = 1; i < goodput.line.size(); ++i) EXPECT_EQ(goodput.line[i].begin, goodput.line[i - 1].end);
  EXPECT_EQ(goodput.line.back().end, goodput.elapsed_seconds);
}

TEST_F(RunsAsRecorded, never_take_more_seconds_than_there_were) {
  RunFacts read = facts();
  read.until = read.run.info.started_at + 20;  // as with clocks that differ
  const Goodput goodput = make_goodput(read);
  EXPECT_LE(goodput.useful_seconds + goodput.recovery_seconds + goodput.start_seconds, 20.0 + 1e-9);
  EXPECT_GE(goodput.other_seconds, 0.0);
}

TEST_F(RunsAsRecorded, name_who_the_others_wait_for_although_steps_are_equal) {
  const std::vector<Standing> standings = make_standings(facts());
  ASSERT_EQ(standings.size(), 8u);
  for (const Standing& standing : standings) EXPECT_EQ(standing.straggler, standing.rank == 3) << standing.rank;
  EXPECT_NEAR(standings[3].slowdown, 0.95 / 0.85 - 1.0, 1e-9);
}

TEST_F(RunsAsRecorded, show_predicted_memory_beside_that_of_every_rank) {
  const MemoryTerms memory = make_memory_terms(facts());
  ASSERT_TRUE(memory.predicted);
  EXPECT_EQ(memory.predicted->activations, 6.0 * 1073741824.0);
  ASSERT_EQ(memory.ranks.size(), 8u);
  EXPECT_EQ(memory.ranks[3].stage, 0);
  EXPECT_EQ(memory.ranks[4].stage, 1);
  EXPECT_NEAR(memory.peak_bytes, 14.7 * 1073741824.0, 1.0);
  EXPECT_NEAR(memory.ranks[0].growth_bytes, 1e6 * (40 - 6), 1.0);
  const auto json = to_json(memory);
  EXPECT_EQ(json.at("predicted").at("total_bytes"), 15.0 * 1073741824.0);
  EXPECT_EQ(json.at("capacity_bytes"), 80.0 * 1073741824.0);
}

TEST_F(RunsAsRecorded, have_a_predicted_band) {
  const auto json = to_json(facts().predicted, "tokens");
  EXPECT_EQ(json.at("step_seconds").at("low"), 0.7);
  EXPECT_EQ(json.at("mfu").at("expected"), 0.4);
  EXPECT_EQ(json.at("tokens_per_second").at("expected"), MadeUpRun::kTokens / 0.8);
  EXPECT_EQ(json.at("memory_bytes").at("expected"), 15.0 * 1073741824.0);
  run_.with_prediction = false;
  const TemporaryFolder other;
  EXPECT_TRUE(to_json(read_run_facts(*run_.store(other), "last").predicted, "tokens").at("mfu").is_null());
}

}  // namespace
}  // namespace lockstep::report
