#include "lockstep/planner/proxy/carry_over.h"

#include <gtest/gtest.h>

#include <cmath>

namespace lockstep::planner {
namespace {

using enum StepPhase;

StepParts parts(double compute, double comm, double optimizer, double host) {
  StepParts made;
  made[kCompute] = compute;
  made[kComm] = comm;
  made[kOptimizer] = optimizer;
  made[kHost] = host;
  return made;
}

// Every phase takes `factor` times its prediction.
CheckedStep off_by(double factor) {
  return {parts(70, 20, 5, 5), parts(70 * factor, 20 * factor, 5 * factor, 5 * factor)};
}

const plan::Interval kBefore{80, 100, 130};
const StepParts kJob = parts(50, 40, 5, 5);

double width_up(const plan::Interval& interval) { return std::log(interval.high / interval.expected); }
double width_down(const plan::Interval& interval) { return std::log(interval.expected / interval.low); }

TEST(CarryOver, a_perfect_check_on_another_device_changes_nothing) {
  const CarriedOver carried = carry_over(kBefore, kJob, {off_by(1), off_by(1)}, false);
  EXPECT_DOUBLE_EQ(carried.widened_by, 0);
  EXPECT_NEAR(carried.step_seconds.low, 80, 1e-9);
  EXPECT_NEAR(carried.step_seconds.expected, 100, 1e-9);
  EXPECT_NEAR(carried.step_seconds.high, 130, 1e-9);
}

TEST(CarryOver, on_another_device_the_expected_value_stays_and_the_interval_grows_as_by_an_independent_error) {
  const CarriedOver carried = carry_over(kBefore, kJob, {off_by(1.1)}, false);
  const double by = 1.6449 * std::log(1.1);
  EXPECT_NEAR(carried.widened_by, by, 1e-12);
  EXPECT_DOUBLE_EQ(carried.step_seconds.expected, 100);
  EXPECT_NEAR(width_up(carried.step_seconds), std::hypot(std::log(1.3), by), 1e-12);
  EXPECT_NEAR(width_down(carried.step_seconds), std::hypot(std::log(1 / 0.8), by), 1e-12);
}

TEST(CarryOver, errors_of_either_sign_widen_alike) {
  const double slower = carry_over(kBefore, kJob, {off_by(1.1)}, false).widened_by;
  EXPECT_NEAR(carry_over(kBefore, kJob, {off_by(1 / 1.1)}, false).widened_by, slower, 1e-12);
  EXPECT_NEAR(carry_over(kBefore, kJob, {off_by(1.1), off_by(1 / 1.1)}, false).widened_by, slower, 1e-12);
}

// Compute 10% too long and communication as much too short leave the proxy's step right; the job has other shares.
TEST(CarryOver, phases_that_cancel_on_the_proxy_widen_by_the_shares_of_the_job) {
  const CheckedStep cancelling{parts(50, 50, 0, 0), parts(55, 45, 0, 0)};
  const CarriedOver carried = carry_over(kBefore, kJob, {cancelling}, false);
  const double expected = 1.6449 * (0.5 * std::log(1.1) + 0.4 * std::log(1 / 0.9));
  EXPECT_NEAR(carried.widened_by, expected, 1e-12);
}

TEST(CarryOver, on_the_same_device_each_phase_moves_by_its_mean_error) {
  const CheckedStep slow_compute{parts(50, 50, 0, 0), parts(60, 50, 0, 0)};
  const CarriedOver carried = carry_over(kBefore, kJob, {slow_compute}, true);
  EXPECT_NEAR(carried.step_seconds.expected, 100 * (0.5 * 1.2 + 0.4 + 0.05 + 0.05), 1e-9);
  EXPECT_NEAR(carried.widened_by, std::log(1.1), 1e-12) << "one proxy: all of its ratio is uncertainty";
}

TEST(CarryOver, on_the_same_device_proxies_that_agree_do_not_widen) {
  const CarriedOver carried = carry_over(kBefore, kJob, {off_by(1.2), off_by(1.2), off_by(1.2)}, true);
  EXPECT_NEAR(carried.step_seconds.expected, 120, 1e-9);
  EXPECT_NEAR(carried.widened_by, 0, 1e-9);
}

TEST(CarryOver, on_the_same_device_the_scatter_widens_by_students_t) {
  const CarriedOver carried = carry_over(kBefore, kJob, {off_by(1.1), off_by(1 / 1.1)}, true);
  const double deviation = std::sqrt(2.0) * std::log(1.1);
  EXPECT_NEAR(carried.widened_by, 6.314 * deviation * std::sqrt(1.5), 1e-9);
  EXPECT_NEAR(carried.step_seconds.expected, 100, 1e-9);
}

TEST(CarryOver, a_phase_that_no_proxy_has_is_not_judged_and_stays) {
  const CheckedStep without_comm{parts(90, 1, 5, 4), parts(99, 10, 5, 4)};
  const CarriedOver carried = carry_over(kBefore, kJob, {without_comm}, true);
  const PhaseError& comm = carried.phases[static_cast<std::size_t>(kComm)];
  EXPECT_EQ(comm.phase, kComm);
  EXPECT_EQ(comm.checks, 0);
  EXPECT_FALSE(comm.log_error);
  EXPECT_DOUBLE_EQ(comm.factor, 1);
  EXPECT_DOUBLE_EQ(comm.share, 0.4);
}

TEST(CarryOver, a_phase_that_was_predicted_and_never_came_has_a_finite_error) {
  const CheckedStep nothing_came{parts(90, 10, 0, 0), parts(90, 0, 0, 0)};
  const CarriedOver carried = carry_over(kBefore, kJob, {nothing_came}, false);
  EXPECT_NEAR(*carried.phases[static_cast<std::size_t>(kComm)].log_error, std::log(5), 1e-12);
}

TEST(StepParts, of_a_prediction_add_up_to_it) {
  const plan::TimeBreakdown time{.compute = 1,
                                 .tp_comm = 2,
                                 .dp_comm = 3,
                                 .pp_comm = 4,
                                 .cp_comm = 5,
                                 .ep_comm = 6,
                                 .bubble = 7,
                                 .optimizer = 8,
                                 .other = 9};
  const StepParts made = parts_of(time);
  EXPECT_DOUBLE_EQ(made.total(), time.total());
  EXPECT_DOUBLE_EQ(made[kComm], 27);
  EXPECT_DOUBLE_EQ(made[kHost], 9);
}

TEST(StepParts, scaled_to_a_step_keep_their_shares) {
  const StepParts scaled = scaled_to(parts(6, 2, 1, 1), 5);
  EXPECT_DOUBLE_EQ(scaled.total(), 5);
  EXPECT_DOUBLE_EQ(scaled[kCompute], 3);
}

TEST(MiddleRun, is_the_median_and_of_two_the_one_further_off) {
  EXPECT_EQ(middle_run({0.3, -0.2, 0.1}), 2u);
  EXPECT_EQ(middle_run({0.1, -0.2}), 1u);
  EXPECT_EQ(middle_run({0.2, 0.05, 0.1, -0.3}), 2u);
  EXPECT_EQ(middle_run({7.0}), 0u);
}

}  // namespace
}  // namespace lockstep::planner
