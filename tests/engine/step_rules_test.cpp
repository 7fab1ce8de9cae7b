#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/engine/loss_scaler.h"
#include "lockstep/engine/precision.h"
#include "lockstep/engine/schedule.h"
#include "lockstep/engine/sharded_optimizer.h"

namespace lockstep::engine {
namespace {

spec::Optimizer schedule(spec::ScheduleKind kind) {
  spec::Optimizer options;
  options.schedule = kind;
  options.learning_rate = 1.0;
  options.min_learning_rate = 0.2;
  options.warmup_steps = 4;
  return options;
}

TEST(Schedule, warms_up_from_the_first_step_on) {
  for (const auto kind : {spec::ScheduleKind::kConstant, spec::ScheduleKind::kLinear, spec::ScheduleKind::kCosine}) {
    const spec::Optimizer options = schedule(kind);
    EXPECT_DOUBLE_EQ(learning_rate_at(options, 0, 14), 0.25);
    EXPECT_DOUBLE_EQ(learning_rate_at(options, 1, 14), 0.5);
    EXPECT_DOUBLE_EQ(learning_rate_at(options, 3, 14), 1.0);
    EXPECT_DOUBLE_EQ(learning_rate_at(options, 4, 14), 1.0);
  }
}

TEST(Schedule, follows_the_formula_after_warm_up) {
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule(spec::ScheduleKind::kConstant), 13, 14), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule(spec::ScheduleKind::kLinear), 9, 14), 0.6);  // half-way
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule(spec::ScheduleKind::kCosine), 9, 14), 0.6);
  EXPECT_NEAR(learning_rate_at(schedule(spec::ScheduleKind::kLinear), 6, 14), 0.84, 1e-12);  // a fifth
  EXPECT_NEAR(learning_rate_at(schedule(spec::ScheduleKind::kCosine), 6, 14), 0.2 + 0.4 * (1 + std::cos(M_PI / 5)),
              1e-12);
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule(spec::ScheduleKind::kLinear), 14, 14), 0.2);
  EXPECT_DOUBLE_EQ(learning_rate_at(schedule(spec::ScheduleKind::kCosine), 99, 14), 0.2);
}

TEST(Schedule, copes_with_no_warm_up_and_with_nothing_but_warm_up) {
  spec::Optimizer options = schedule(spec::ScheduleKind::kCosine);
  options.warmup_steps = 0;
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 0, 1), 1.0);
  options.warmup_steps = 10;
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 9, 10), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate_at(options, 10, 10), 1.0);
}

TEST(Schedule, refuses_a_minimum_above_the_maximum) {
  spec::Optimizer options = schedule(spec::ScheduleKind::kLinear);
  options.min_learning_rate = 2.0;
  EXPECT_THROW(learning_rate_at(options, 0, 10), UserError);
}

TEST(ClipFactor, clips_to_the_limit_and_not_below_it) {
  EXPECT_EQ(clip_factor(7.0, 0.0), 1.0);
  EXPECT_EQ(clip_factor(7.0, 10.0), 1.0);
  EXPECT_NEAR(clip_factor(7.0, 3.5), 0.5, 1e-6);
}

TEST(ClipFactor, takes_the_loss_scale_out) { EXPECT_NEAR(clip_factor(7.0, 3.5, 1024.0) * 1024.0, 0.5, 1e-6); }

TEST(LossScaler, grows_after_good_steps_and_backs_off_at_once) {
  LossScaler scaler({.enabled = true, .initial_scale = 8.0, .growth_interval = 3});
  scaler.update(true);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 8.0);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 16.0);
  scaler.update(true);
  scaler.update(true);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 8.0);
  scaler.update(true);
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 8.0) << "an overflow starts the count anew";
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 16.0);
  EXPECT_EQ(scaler.skipped_steps(), 1);
}

TEST(LossScaler, stays_at_one_when_disabled) {
  LossScaler scaler;
  for (int i = 0; i < 5000; ++i) scaler.update(i % 7 != 0);
  EXPECT_EQ(scaler.scale(), 1.0);
}

TEST(LossScaler, continues_from_a_saved_state_and_refuses_a_damaged_one) {
  const LossScalerOptions options{.enabled = true, .initial_scale = 8.0, .growth_interval = 3};
  LossScaler first(options);
  for (const bool finite : {true, false, true, true}) first.update(finite);
  LossScaler second(options);
  second.load_state(first.state());
  for (int i = 0; i < 5; ++i) {
    first.update(true);
    second.update(true);
    EXPECT_EQ(first.scale(), second.scale());
  }
  EXPECT_EQ(second.skipped_steps(), 1);
  EXPECT_THROW(second.load_state({}), UserError);
  EXPECT_THROW(second.load_state({{"loss_scaler.state", torch::tensor({-1.0, 0.0, 0.0}, torch::kFloat64)}}), UserError);
}

TEST(Precision, keeps_a_master_for_narrow_types_only) {
  EXPECT_FALSE(precision_policy(spec::Precision::kFp64, torch::kCPU).has_master());
  EXPECT_FALSE(precision_policy(spec::Precision::kFp32, torch::kCPU).has_master());
  const PrecisionPolicy bf16 = precision_policy(spec::Precision::kBf16, torch::kCPU);
  EXPECT_EQ(bf16.model, torch::kBFloat16);
  EXPECT_EQ(bf16.gradient, torch::kFloat32);
  EXPECT_TRUE(bf16.has_master());
  EXPECT_FALSE(bf16.loss_scaling);
}

TEST(Precision, offers_fp16_only_where_libtorch_can_multiply_it) {
  bool can_multiply = true;
  try {
    const torch::Tensor x = torch::ones({2, 2}, torch::kHalf);
    torch::mm(x, x);
  } catch (const c10::Error&) {
    can_multiply = false;
  }
  if (can_multiply) {
    EXPECT_TRUE(precision_policy(spec::Precision::kFp16, torch::kCPU).loss_scaling);
    return;
  }
  try {
    precision_policy(spec::Precision::kFp16, torch::kCPU);
    FAIL() << "fp16 was offered";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_NE(error.fix(), "");
  }
}

TEST(Precision, says_that_fp8_is_not_trained) {
  EXPECT_THROW(precision_policy(spec::Precision::kFp8, torch::kCPU), UserError);
}

}  // namespace
}  // namespace lockstep::engine
