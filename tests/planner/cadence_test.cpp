#include "lockstep/planner/cadence.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace lockstep::planner {
namespace {

constexpr double kHour = 3600;
constexpr double kDay = 86400;

TEST(OptimalInterval, of_young_for_a_minute_of_stall_and_a_failure_a_day) {
  // sqrt(2 x 60 x 86400) = sqrt(10368000) = 3219.94 s.
  EXPECT_NEAR(young_interval(60, kDay), 3219.938, 1e-3);
}

TEST(OptimalInterval, of_daly_adds_two_terms_to_youngs) {
  // ratio = 60 / 172800 = 3.47222e-4, its root 0.0186339: 3219.938 x (1 + 0.00621130 + 0.0000385802) = 3240.062.
  EXPECT_NEAR(daly_interval(60, kDay), 3240.062, 2e-3);
  // Five minutes of stall, a failure every 6 hours: sqrt(2 x 300 x 21600) = 3600; ratio 1/144, root 1/12:
  // 3600 x (1 + 1/36 + 1/1296) = 3702.78.
  EXPECT_NEAR(daly_interval(300, 6 * kHour), 3702.778, 1e-3);
  // Longer to save than twice the time between failures: one mean of work for each save.
  EXPECT_DOUBLE_EQ(daly_interval(250, 100), 350);
}

TEST(OptimalInterval, of_daly_equals_the_examples_of_his_paper) {
  // Figures 3 to 5: dumps of 5 minutes and a failure every 24 h, 6 h, 15 min; 117, 57 and 9.1 minutes of work each.
  EXPECT_NEAR((daly_interval(300, 24 * kHour) - 300) / 60, 117, 0.5);
  EXPECT_NEAR((daly_interval(300, 6 * kHour) - 300) / 60, 57, 0.5);
  EXPECT_NEAR((daly_interval(300, 900) - 300) / 60, 9.1, 0.05);
}

TEST(OptimalInterval, of_daly_is_where_goodput_is_highest) {
  for (const double stall : {1.0, 30.0, 300.0}) {
    for (const double mean : {2 * kHour, kDay, 30 * kDay}) {
      const double best = daly_interval(stall, mean);
      const double at_best = goodput_of(best, stall, 60, 300, 1 / mean);
      for (const double factor : {0.8, 0.95, 1.05, 1.25}) {
        EXPECT_GT(at_best, goodput_of(best * factor, stall, 60, 300, 1 / mean)) << stall << " " << mean;
      }
    }
  }
}

// Plays the process of cadence.h second by second of its events: work, stall, a copy written behind the work, failures
// at exponential times, restarts that may fail too.
double simulated_goodput(double interval, double stall, double background, double restart, double rate, int failures) {
  std::mt19937_64 random(20260301);
  std::exponential_distribution<double> until_failure(rate);
  double wall = 0, durable_work = 0;
  for (int i = 0; i < failures; ++i) {
    double life = until_failure(random);
    wall += life;
    // Checkpoints begin after each `interval - stall` of work; each counts once it is written.
    for (double begins = interval - stall; begins + stall + background <= life; begins += interval) {
      durable_work += interval - stall;
    }
    double down = until_failure(random);
    while (down < restart) {
      wall += down;
      down = until_failure(random);
    }
    wall += restart;
    // The exponential has no memory: what is left of `down` after the restart is a fresh draw.
  }
  return durable_work / wall;
}

TEST(Goodput, equals_a_simulation_of_failures) {
  struct Case {
    double interval, stall, background, restart, rate;
  };
  const Case cases[] = {{1800, 5, 60, 300, 1 / kDay},
                        {600, 30, 200, 300, 1 / (3 * kHour)},
                        {3600, 60, 900, 600, 1 / (2 * kHour)},
                        {900, 0.5, 0, 120, 1 / (30 * kDay)},
                        {1200, 100, 1100, 900, 1 / (1 * kHour)}};
  for (const Case& c : cases) {
    const double formula = goodput_of(c.interval, c.stall, c.background, c.restart, c.rate);
    const double simulated = simulated_goodput(c.interval, c.stall, c.background, c.restart, c.rate, 200'000);
    EXPECT_NEAR(formula / simulated, 1.0, 0.01) << c.interval << " " << c.rate;
  }
}

TEST(Goodput, without_failures_is_the_share_that_does_not_stall) {
  EXPECT_DOUBLE_EQ(goodput_of(100, 4, 50, 300, 0), 0.96);
}

TEST(Goodput, for_rare_failures_is_the_first_order_sum_of_its_losses) {
  // Stall 10 of 1000 s; each failure (one in 1e6 s) costs half an interval, the writing and the restart.
  const double first_order = 1 - 10.0 / 1000 - 1e-6 * (500 + 40 + 300);
  EXPECT_NEAR(goodput_of(1000, 10, 40, 300, 1e-6), first_order, 2e-5);
}

CadenceQuestion question_with(double stall, double mean_between_failures) {
  CadenceQuestion question;
  question.state_bytes = 100e9;
  question.write_bytes_per_second = 1e9;  // 100 s
  question.stall_seconds = stall;
  question.failures_per_second = mean_between_failures > 0 ? 1 / mean_between_failures : 0;
  return question;
}

TEST(Cadence, follows_daly_where_the_cap_allows) {
  CadenceQuestion question = question_with(2, 12 * kHour);
  const plan::CheckpointCadence cadence = choose_cadence(question);
  EXPECT_DOUBLE_EQ(cadence.interval_seconds, daly_interval(2, 12 * kHour));  // some 7 minutes
  EXPECT_DOUBLE_EQ(cadence.stall_seconds, 2);
  EXPECT_DOUBLE_EQ(cadence.worst_lost_seconds, cadence.interval_seconds + 102);
  EXPECT_DOUBLE_EQ(cadence.expected_lost_seconds, cadence.interval_seconds / 2 + 102);
  EXPECT_GT(cadence.goodput, 0.95);
}

TEST(Cadence, is_cut_to_the_cap_less_the_time_to_be_durable) {
  const plan::CheckpointCadence cadence = choose_cadence(question_with(10, 100 * kDay));  // Young: 3.7 hours
  EXPECT_NEAR(cadence.interval_seconds, 1800 - 110, 1e-9);
  EXPECT_DOUBLE_EQ(cadence.worst_lost_seconds, 1800);
}

TEST(Cadence, without_a_failure_rate_is_the_cap_alone) {
  const plan::CheckpointCadence cadence = choose_cadence(question_with(10, 0));
  EXPECT_NEAR(cadence.interval_seconds, 1690, 1e-9);
  EXPECT_NEAR(cadence.goodput, 1 - 10.0 / 1690, 1e-12);
}

TEST(Cadence, that_cannot_keep_the_cap_says_so_and_saves_back_to_back) {
  CadenceQuestion question = question_with(10, kDay);
  question.max_lost_seconds = 150;
  const plan::CheckpointCadence cadence = choose_cadence(question);
  EXPECT_DOUBLE_EQ(cadence.interval_seconds, 110);  // the next begins when this one is durable
  EXPECT_DOUBLE_EQ(cadence.worst_lost_seconds, 220);
  EXPECT_GT(cadence.worst_lost_seconds, question.max_lost_seconds);
  question.max_lost_seconds = 220;
  EXPECT_LE(choose_cadence(question).worst_lost_seconds, question.max_lost_seconds);
}

TEST(Cadence, falls_between_steps_and_still_keeps_the_cap) {
  CadenceQuestion question = question_with(10, 100 * kDay);
  question.step_seconds = 37;
  const plan::CheckpointCadence cadence = choose_cadence(question);
  const double steps = (cadence.interval_seconds - 10) / 37;
  EXPECT_NEAR(steps, std::round(steps), 1e-9);
  EXPECT_LE(cadence.worst_lost_seconds, 1800);
  EXPECT_GT(cadence.worst_lost_seconds, 1800 - 37);
  question.step_seconds = 5000;  // one step alone is longer than the cap
  EXPECT_DOUBLE_EQ(choose_cadence(question).interval_seconds, 5010);
}

TEST(Cadence, assumes_the_stall_from_the_copy_to_host_memory) {
  CadenceQuestion question = question_with(-1, kDay);
  question.host_copy_bytes_per_second = 50e9;
  EXPECT_DOUBLE_EQ(choose_cadence(question).stall_seconds, 2);
  question.stall_seconds = 0.3;
  EXPECT_DOUBLE_EQ(choose_cadence(question).stall_seconds, 0.3);
}

TEST(Cadence, of_nothing_known_is_finite) {
  const plan::CheckpointCadence cadence = choose_cadence({.max_lost_seconds = 1e300});
  EXPECT_DOUBLE_EQ(cadence.interval_seconds, kDay);
  EXPECT_DOUBLE_EQ(cadence.goodput, 1);
  const plan::CheckpointCadence hopeless = choose_cadence({.failures_per_second = 1e9, .stall_seconds = 5});
  EXPECT_TRUE(std::isfinite(hopeless.interval_seconds));
  EXPECT_EQ(hopeless.goodput, 0);
}

TEST(Cadence, moves_the_right_way_with_every_figure) {
  std::mt19937_64 random(5);
  const auto between = [&random](double low, double high) {
    return low * std::pow(high / low, std::uniform_real_distribution<double>()(random));
  };
  for (int i = 0; i < 2000; ++i) {
    CadenceQuestion question = question_with(between(0.1, 200), between(kHour, 100 * kDay));
    question.write_bytes_per_second = between(1e8, 1e11);
    question.max_lost_seconds = between(300, 36000);
    question.step_seconds = i % 2 == 0 ? between(0.1, 100) : 0;
    const plan::CheckpointCadence base = choose_cadence(question);
    ASSERT_GT(base.goodput, 0);
    ASSERT_LT(base.goodput, 1);
    ASSERT_LE(base.expected_lost_seconds, base.worst_lost_seconds);

    CadenceQuestion better = question;
    better.write_bytes_per_second *= 2;
    // Below a cap out of reach, faster storage is spent on coming nearer to it.
    if (base.worst_lost_seconds > question.max_lost_seconds) {
      EXPECT_LT(choose_cadence(better).worst_lost_seconds, base.worst_lost_seconds);
    } else {
      EXPECT_GE(choose_cadence(better).goodput, base.goodput * (1 - 1e-4));  // whole steps
    }
    better = question;
    better.failures_per_second /= 2;
    EXPECT_GT(choose_cadence(better).goodput, base.goodput);
    EXPECT_GE(choose_cadence(better).interval_seconds, base.interval_seconds);
    better = question;
    better.restart_seconds /= 2;
    EXPECT_GT(choose_cadence(better).goodput, base.goodput);
    better = question;
    better.max_lost_seconds *= 2;
    EXPECT_GE(choose_cadence(better).goodput, base.goodput * (1 - 1e-4));  // whole steps and Daly's estimate
    EXPECT_GE(choose_cadence(better).worst_lost_seconds, base.worst_lost_seconds);
  }
}

TEST(CadenceQuestion, adds_up_the_specs) {
  // 32 nodes of Llama 3's rate, 3.8 per 1000 node-days: one failure in 8.2 days. State: 14 bytes x 70.55e9 = 988 GB.
  const CadenceQuestion question =
      cadence_question(spec::load_model("llama3-70b"), spec::load_cluster("32x8xH100"), 12.5, 1800);
  EXPECT_NEAR(1 / question.failures_per_second / kDay, 1000 / (32 * 3.8), 1e-9);
  EXPECT_DOUBLE_EQ(question.state_bytes, 14.0 * 70'553'706'496);
  EXPECT_DOUBLE_EQ(question.write_bytes_per_second, 32e9);
  EXPECT_DOUBLE_EQ(question.host_copy_bytes_per_second, 640e9);
  EXPECT_NEAR(question.restart_seconds, 300 + 987.75 / 64, 0.01);
  EXPECT_DOUBLE_EQ(question.step_seconds, 12.5);
  const plan::CheckpointCadence cadence = choose_cadence(question);
  EXPECT_LE(cadence.worst_lost_seconds, 1800);
  EXPECT_GT(cadence.goodput, 0.99);
}

TEST(CadenceQuestion, sums_failures_over_unlike_groups) {
  spec::Cluster cluster = spec::load_cluster("2x8xH100");
  cluster.groups.push_back(spec::load_cluster("3x8xA100").groups[0]);
  const double expected = (2 * 3.8 + 3 * 6.5) / (1000 * kDay);
  EXPECT_NEAR(cadence_question(spec::load_model("llama2-7b"), cluster, 1, 1800).failures_per_second, expected, 1e-15);
}

TEST(FailureRate, is_as_assumed_while_nothing_fails) {
  EXPECT_DOUBLE_EQ(expected_failure_rate(1e-6, 0, 0), 1e-6);
  EXPECT_DOUBLE_EQ(expected_failure_rate(1e-6, 0, 1e6), 0.5e-6) << "as long as one was expected in";
  EXPECT_EQ(expected_failure_rate(0, 0, 1e6), 0);
}

TEST(FailureRate, of_one_early_failure_is_that_of_machines_with_something_wrong) {
  // 1 / A = 1e7: weights 0.01 x 3600 / 7200^2 = 6.944e-7 and 0.99 x 1e7 / 10003600^2 = 9.893e-8, so 0.8753 of
  // 2 / 7200 and 0.1247 of 2 / 10003600.
  EXPECT_NEAR(expected_failure_rate(1e-7, 1, kHour), 2.4317e-4, 1e-8);
  // The same after a day: 4.444e-9 and 9.731e-8, 0.04368 of 2 / 90000 and the rest of 2 / 10086400.
  EXPECT_NEAR(expected_failure_rate(1e-7, 1, kDay), 1.1602e-6, 1e-9);
}

TEST(FailureRate, of_many_failures_is_their_number_over_the_time) {
  EXPECT_NEAR(expected_failure_rate(1e-7, 1000, 10 * kDay), 1000 / (10 * kDay), 0.01 * 1000 / (10 * kDay));
  EXPECT_NEAR(expected_failure_rate(0, 1000, 10 * kDay), 1000 / (10 * kDay), 0.01 * 1000 / (10 * kDay));
}

TEST(FailureRate, as_often_as_assumed_stays_about_the_same) {
  for (const double assumed : {1e-4, 1e-5, 1e-6}) {
    EXPECT_NEAR(expected_failure_rate(assumed, 50, 50 / assumed) / assumed, 1, 0.05) << assumed;
  }
}

TEST(FailureRate, rises_with_every_failure_and_falls_with_time) {
  for (const double assumed : {0.0, 1e-9, 1e-6, 1e-3}) {
    for (int failures = 1; failures < 2000; failures *= 3) {
      EXPECT_GT(expected_failure_rate(assumed, failures + 1, kDay), expected_failure_rate(assumed, failures, kDay));
      EXPECT_LT(expected_failure_rate(assumed, failures, 2 * kDay), expected_failure_rate(assumed, failures, kDay));
    }
  }
}

TEST(Cadence, a_measured_write_counts_instead_of_the_bytes) {
  CadenceQuestion question;
  question.state_bytes = 1e12;
  question.write_bytes_per_second = 1e9;
  question.stall_seconds = 2;
  question.write_seconds = 30;
  const plan::CheckpointCadence cadence = choose_cadence(question);
  EXPECT_DOUBLE_EQ(cadence.worst_lost_seconds, 1800);
  EXPECT_DOUBLE_EQ(cadence.interval_seconds, 1800 - 32);
}

}  // namespace
}  // namespace lockstep::planner
