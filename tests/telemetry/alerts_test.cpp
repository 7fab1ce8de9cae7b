// Rules fed with made-up steps: each fires for what it is about, is over afterwards, and stays silent else.
#include "lockstep/telemetry/alerts.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/telemetry/node_alerts.h"
#include "tests/telemetry/simulated_run.h"

namespace lockstep::telemetry {
namespace {

using spec::AlertRule;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

// Steps of a healthy run, changed by the test before they are looked at.
class Steps {
 public:
  explicit Steps(AlertContext context = {}) : alerts_(context), run_({.seed = 7, .begins = false}) {}

  template <class Change>
  Steps& go(int steps, Change change) {
    for (int i = 0; i < steps; ++i) {
      StepSample sample = run_.next();
      change(sample);
      for (Alert& alert : alerts_.observe(sample)) {
        delays_.push_back(i + 1);
        told.push_back(std::move(alert));
      }
    }
    return *this;
  }
  Steps& go(int steps) {
    return go(steps, [](StepSample&) {});
  }
  // "slow_down", "-slow_down": what fired and what was over since the last call, in order.
  std::vector<std::string> names() {
    std::vector<std::string> result;
    for (const Alert& alert : told)
      result.push_back((alert.firing ? "" : "-") + std::string(lockstep::to_string(alert.rule)));
    last = told.empty() ? Alert{} : told.back();
    told.clear();
    last_delay = delays_.empty() ? 0 : delays_.front();
    delays_.clear();
    return result;
  }

  std::vector<Alert> told;
  Alert last;
  int last_delay = 0;  // steps from the last go() to the first alert

 private:
  StepAlerts alerts_;
  SimulatedRun run_;
  std::vector<int> delays_;
};

using Names = std::vector<std::string>;

TEST(Alerts, a_silent_slow_down_is_told_within_five_steps_and_is_over_when_it_is) {
  Steps steps({.usd_per_hour = 100.0});
  EXPECT_EQ(steps.go(500).names(), Names{});
  EXPECT_EQ(steps.go(20, [](StepSample& one) { one.seconds *= 1.06; }).names(), Names{"slow_down"});
  EXPECT_LE(steps.last_delay, 5);
  EXPECT_NEAR(steps.last.value, 0.06, 0.015);
  EXPECT_NEAR(steps.last.cost_percent, 5.7, 1.5);  // 1 - 1 / 1.06
  EXPECT_NEAR(steps.last.usd_per_day, 2400.0 * steps.last.cost_percent / 100.0, 1e-9);
  EXPECT_EQ(steps.last.fix, "lockstep diagnose last");
  EXPECT_EQ(steps.go(40).names(), Names{"-slow_down"});
}

TEST(Alerts, a_slow_down_that_stays_becomes_usual_and_a_second_one_is_told) {
  Steps steps;
  steps.go(300).names();
  EXPECT_EQ(steps.go(1100, [](StepSample& one) { one.seconds *= 1.1; }).names(), (Names{"slow_down", "-slow_down"}));
  EXPECT_EQ(steps.go(100, [](StepSample& one) { one.seconds *= 1.2; }).names(), Names{"slow_down"});
}

TEST(Alerts, times_that_go_up_and_down_do_not_flap) {
  Steps steps;
  steps.go(300).names();
  int i = 0;
  steps.go(400, [&](StepSample& one) { one.seconds *= (i++ / 6) % 2 == 0 ? 1.08 : 1.0; });
  EXPECT_LE(steps.names().size(), 2u);
}

TEST(Alerts, steps_with_checkpoints_and_with_other_work_are_not_slow) {
  Steps steps;
  steps.go(300).names();
  EXPECT_EQ(steps.go(8, [](StepSample& one) { one.seconds *= 2, one.disturbed = true; }).names(), Names{});
  EXPECT_EQ(steps.go(300, [](StepSample& one) { one.seconds *= 2, one.items *= 2, one.predicted_slowest_seconds *= 2; })
                .names(),
            Names{});
}

TEST(Alerts, what_is_always_disturbed_is_looked_at_all_the_same) {
  Steps steps;
  steps.go(300, [](StepSample& one) { one.disturbed = true; }).names();
  EXPECT_EQ(steps.go(30, [](StepSample& one) { one.seconds *= 1.2, one.disturbed = true; }).names(),
            Names{"slow_down"});
}

TEST(Alerts, a_slow_down_of_a_moment_is_not_told_where_steps_are_short) {
  Steps steps;  // `hold` is 10 s
  const auto quick = [](double factor) {
    return [factor](StepSample& one) { one.seconds *= 1e-4 * factor, one.data_seconds = 0.0; };
  };
  steps.go(500, quick(1.0));
  EXPECT_EQ(steps.go(500, quick(1.5)).names(), Names{});  // 8 s
  EXPECT_EQ(steps.go(500, quick(1.5)).names(), Names{"slow_down"});
}

TEST(Alerts, throughput_that_creeps_away_from_the_best_is_told_once) {
  Steps steps;
  steps.go(2000).names();
  double slower = 1.0;
  const auto names = steps.go(6000, [&](StepSample& one) { one.seconds *= slower += 2e-5; }).names();
  EXPECT_EQ(std::count(names.begin(), names.end(), "mfu_drop"), 1);
  EXPECT_EQ(std::count(names.begin(), names.end(), "slow_down"), 0);
}

TEST(Alerts, slower_than_the_plan_at_its_slowest) {
  Steps steps;
  const auto predicted = [](double seconds) {
    return
        [seconds](StepSample& one) { one.predicted_seconds = 0.9 * seconds, one.predicted_slowest_seconds = seconds; };
  };
  EXPECT_EQ(steps.go(400, predicted(100.0)).names(), Names{});  // 5% beyond
  EXPECT_EQ(steps.go(200, predicted(80.0)).names(), Names{"below_prediction"});
  EXPECT_NEAR(steps.last.cost_percent, 100.0 * (1.0 - 72.0 / 105.0), 1.5);
  EXPECT_EQ(steps.go(200, predicted(110.0)).names(), Names{"-below_prediction"});
}

TEST(Alerts, a_loss_that_jumps_is_told_within_five_steps_and_one_bad_batch_is_not) {
  Steps steps;
  steps.go(200).names();
  EXPECT_EQ(steps.go(1, [](StepSample& one) { *one.loss += 3.0; }).names(), Names{});
  EXPECT_EQ(steps.go(30).names(), Names{});
  EXPECT_EQ(steps.go(20, [](StepSample& one) { *one.loss += 0.3; }).names(), Names{"loss_spike"});
  EXPECT_LE(steps.last_delay, 5);
  EXPECT_EQ(steps.go(20).names(), Names{"-loss_spike"});
}

TEST(Alerts, a_loss_that_stays_high_becomes_usual) {
  Steps steps;
  steps.go(200).names();
  EXPECT_EQ(steps.go(700, [](StepSample& one) { *one.loss += 1.0; }).names(), (Names{"loss_spike", "-loss_spike"}));
}

TEST(Alerts, what_is_not_a_number_is_told_at_once_and_only_as_that) {
  Steps steps;
  steps.go(100).names();
  EXPECT_EQ(steps.go(1, [](StepSample& one) { one.loss = kNan; }).names(), Names{"nonfinite"});
  EXPECT_EQ(to_event(steps.last).level, Level::kError);
  EXPECT_EQ(steps.go(5, [](StepSample& one) { one.loss = kNan; }).names(), Names{});
  EXPECT_EQ(steps.go(10).names(), Names{"-nonfinite"});
  EXPECT_EQ(steps.go(1, [](StepSample& one) { one.skipped = true; }).names(), Names{"nonfinite"});
}

TEST(Alerts, skipped_steps_are_how_a_loss_scale_is_found) {
  Steps steps({.loss_scaled = true});
  steps.go(50).names();
  EXPECT_EQ(steps.go(4, [](StepSample& one) { one.skipped = true; }).names(), Names{});
  steps.go(1).names();
  EXPECT_EQ(steps.go(5, [](StepSample& one) { one.skipped = true; }).names(), Names{"nonfinite"});
}

TEST(Alerts, gradients_that_are_outliers_again_and_again) {
  Steps steps;
  steps.go(100).names();
  EXPECT_EQ(steps.go(3, [](StepSample& one) { *one.gradient_norm = 30.0; }).names(), Names{});
  steps.go(30).names();
  EXPECT_EQ(steps.go(6, [](StepSample& one) { *one.gradient_norm = 30.0; }).names(), Names{"gradient_outlier"});
  EXPECT_EQ(steps.go(40).names(), Names{"-gradient_outlier"});
}

TEST(Alerts, a_loader_that_steps_wait_for) {
  Steps steps({.loader_workers = 3});
  EXPECT_EQ(steps.go(100).names(), Names{});
  EXPECT_EQ(steps.go(20, [](StepSample& one) { one.data_seconds = 0.3 * one.seconds; }).names(), Names{"loader_stall"});
  EXPECT_NEAR(steps.last.cost_percent, 30.0, 1.0);
  EXPECT_EQ(steps.last.fix, "lockstep train JOB.yaml --resume loader.num_workers=6");
  EXPECT_EQ(steps.go(20).names(), Names{"-loader_stall"});
}

TEST(Alerts, memory_that_creeps_and_says_when_it_is_full) {
  Steps steps;
  EXPECT_EQ(steps.go(1000).names(), Names{});
  double leaked = 0.0;
  EXPECT_EQ(steps.go(600, [&](StepSample& one) { *one.memory_bytes += leaked += 1e7; }).names(), Names{"memory_creep"});
  EXPECT_NE(steps.last.message.find("full in"), std::string::npos) << steps.last.message;
  EXPECT_EQ(steps.go(600, [&](StepSample& one) { *one.memory_bytes += leaked; }).names(), Names{"-memory_creep"});
}

TEST(Alerts, memory_that_creeps_though_every_epoch_ends_with_a_smaller_step) {
  Steps steps;
  double leaked = 0.0;
  int step = 0;
  const auto leak = [&](StepSample& one) {
    *one.memory_bytes += leaked += 1e7;
    if (++step % 49 == 0) one.items = 16.0;
  };
  EXPECT_EQ(steps.go(700, leak).names(), Names{"memory_creep"});
}

TEST(Alerts, a_checkpoint_that_is_older_than_may_be_lost) {
  Steps steps;
  EXPECT_EQ(steps.go(10, [](StepSample& one) { one.checkpoint_age_seconds = 14400.0; }).names(), Names{});
  EXPECT_EQ(steps.go(3, [](StepSample& one) { one.checkpoint_age_seconds = 14500.0; }).names(),
            Names{"checkpoint_overdue"});
  EXPECT_EQ(steps.last.lost_seconds, 14500.0);
  EXPECT_EQ(steps.go(1, [](StepSample& one) { one.checkpoint_age_seconds = 60.0; }).names(),
            Names{"-checkpoint_overdue"});
}

TEST(Alerts, rules_that_are_off_say_nothing) {
  AlertContext context;
  context.settings.off = {AlertRule::kNonfinite, AlertRule::kLossSpike};
  Steps steps(context);
  steps.go(100).names();
  EXPECT_EQ(steps.go(10, [](StepSample& one) { one.loss = kNan; }).names(), Names{});
}

TEST(Alerts, an_alert_is_an_event_and_back) {
  const Alert alert{.rule = AlertRule::kStraggler,
                    .subject = "rank 3",
                    .rank = 3,
                    .step = 9,
                    .time = 12.5,
                    .value = 0.4,
                    .limit = 0.1,
                    .usual = 2.0,
                    .cost_percent = 12.0,
                    .usd_per_day = 7.5,
                    .message = "slow",
                    .fix = "lockstep diagnose last"};
  const Event event = to_event(alert);
  EXPECT_EQ(event.kind, event_kind::kAlert);
  EXPECT_EQ(event.data.at("state"), "firing");
  const Alert back = alert_of(event);
  EXPECT_EQ(back.rule, alert.rule);
  EXPECT_EQ(back.subject, "rank 3");
  EXPECT_EQ(back.usd_per_day, 7.5);
  EXPECT_EQ(to_text(back), to_text(alert));
  EXPECT_NE(to_text(alert).find("do: lockstep diagnose last"), std::string::npos);
  EXPECT_THROW(alert_of(Event{.kind = "spike"}), UserError);
  const auto heard = alert_in(nlohmann::json::parse(alert_message(alert).dump()));
  ASSERT_TRUE(heard);
  EXPECT_EQ(to_text(*heard), to_text(alert));
  EXPECT_EQ(heard->step, 9);
  for (const char* other : {R"({"type": "note"})", R"({"type": "alert"})", R"({"type": "alert", "line": "x"})"}) {
    EXPECT_FALSE(alert_in(nlohmann::json::parse(other))) << other;
  }
}

TEST(Alerts, hostile_messages_stay_one_line) {
  const std::string text = to_text({.message = "a\n\x1b[31mb", .fix = "c\rd"});
  for (const char c : text) EXPECT_GE(static_cast<unsigned char>(c), 0x20u) << text;
}

TEST(NodeAlerts, silence_is_ten_usual_steps_long_and_not_shorter_than_its_limit) {
  NodeAlerts alerts({});
  double now = 0.0;
  for (int step = 1; step <= 20; ++step) EXPECT_TRUE(alerts.advanced(step, now += 100.0).empty());
  EXPECT_TRUE(alerts.tick(now + 900.0).empty());
  const auto told = alerts.tick(now + 1001.0);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].rule, AlertRule::kHeartbeat);
  EXPECT_EQ(told[0].step, 20);
  EXPECT_TRUE(alerts.tick(now + 2000.0).empty());  // once
  const auto over = alerts.advanced(21, now + 2100.0);
  ASSERT_EQ(over.size(), 1u);
  EXPECT_FALSE(over[0].firing);
}

TEST(NodeAlerts, an_evaluation_or_a_recovery_is_not_silence) {
  NodeAlerts alerts({});
  double now = 0.0;
  for (int step = 1; step <= 20; ++step) alerts.advanced(step, now += 1.0);
  for (int i = 0; i < 20; ++i) {
    alerts.advanced(20, now += 30.0);  // marks of an evaluation
    EXPECT_TRUE(alerts.tick(now + 29.0).empty());
  }
  alerts.waits(now);
  EXPECT_TRUE(alerts.tick(now + 1e6).empty());
}

TEST(NodeAlerts, names_the_rank_that_is_busy_longer_than_the_others) {
  NodeAlerts alerts({});
  const auto look = [&](double slow, int times) {
    std::vector<Alert> all;
    for (int i = 0; i < times; ++i) {
      for (Alert& one : alerts.ranks_were_busy({{0, 10.0}, {1, 10.3}, {2, 10.0 * slow}, {3, 9.9}}, 12.0, 12.0)) {
        all.push_back(std::move(one));
      }
    }
    return all;
  };
  EXPECT_TRUE(look(1.05, 20).empty());
  const auto told = look(1.3, 10);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_EQ(told[0].rank, 2);
  EXPECT_NEAR(told[0].cost_percent, 25.0, 1.0);  // 3 s of 12
  const auto over = look(1.0, 10);
  ASSERT_EQ(over.size(), 1u);
  EXPECT_FALSE(over[0].firing);
}

TEST(NodeAlerts, a_disk_that_fills_is_told_in_time_and_one_where_checkpoints_come_and_go_is_not) {
  NodeAlerts alerts({});
  for (int minute = 0; minute < 600; ++minute) {  // 40 GB written, then the oldest removed, every 30 minutes
    const double free = minute % 30 < 5 ? 460e9 : 500e9;
    ASSERT_TRUE(alerts.disk_is("n0", free, 40e9, 60.0 * minute).empty()) << minute;
  }
  std::vector<Alert> told;
  int minute = 0;
  for (; minute < 200 && told.empty(); ++minute) told = alerts.disk_is("n1", 1e12 - 6e9 * minute, 0.0, 60.0 * minute);
  ASSERT_EQ(told.size(), 1u);  // full after 166 minutes
  EXPECT_EQ(told[0].rule, AlertRule::kDiskFilling);
  EXPECT_LE(told[0].value, 7200.0);
  EXPECT_LT(minute, 60);
}

TEST(NodeAlerts, no_room_for_the_next_checkpoint) {
  NodeAlerts alerts({});
  std::vector<Alert> told;
  for (int i = 0; i < 3; ++i) told = alerts.disk_is("n0", 30e9, 40e9, 5.0 * i);
  ASSERT_EQ(told.size(), 1u);
  for (int i = 3; i < 6; ++i) told = alerts.disk_is("n0", 300e9, 40e9, 5.0 * i);
  ASSERT_EQ(told.size(), 1u);
  EXPECT_FALSE(told[0].firing);
}

TEST(NodeAlerts, a_node_that_is_unwell_is_told_once) {
  NodeAlerts alerts({});
  EXPECT_EQ(alerts.node_is("n1", "gpu 3", "Xid 79", "reset it").size(), 1u);
  EXPECT_EQ(alerts.node_is("n1", "gpu 3", "Xid 79", "reset it").size(), 0u);
  EXPECT_EQ(alerts.node_is("n2", "gpu 3", "Xid 79", "reset it").size(), 1u);
  const auto over = alerts.node_is("n1", "gpu 3", "", "");
  ASSERT_EQ(over.size(), 1u);
  EXPECT_FALSE(over[0].firing);
  EXPECT_EQ(alerts.node_is("n1", "gpu 3", "", "").size(), 0u);
}

}  // namespace
}  // namespace lockstep::telemetry
