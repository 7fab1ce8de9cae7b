#include "lockstep/engine/checkpoint_cadence.h"

#include <gtest/gtest.h>

namespace lockstep::engine {
namespace {

constexpr double kDay = 86400;

// A job that is assumed to fail every ten days, with 1 s of stall and 9 s of writing.
planner::CadenceQuestion assumed() {
  return {.failures_per_second = 1 / (10 * kDay), .stall_seconds = 1, .write_seconds = 9};
}

CheckpointCadence automatic(double max_lost = 7200) {
  spec::CheckpointPolicy policy;
  policy.max_lost_seconds = max_lost;
  return {policy, assumed(), std::nullopt};
}

// Steps of a second until a save is due; when it begins after the last.
double begins_after(const CheckpointCadence& cadence) {
  double age = 0;
  while (!cadence.is_due(age)) age += 1;
  return age + 1;
}

TEST(CheckpointCadence, begins_with_the_plans) {
  const plan::CheckpointCadence planned{
      .interval_seconds = 700, .expected_lost_seconds = 360, .worst_lost_seconds = 720, .stall_seconds = 1};
  CheckpointCadence cadence({}, assumed(), planned);
  EXPECT_EQ(cadence.now(), planned);
  EXPECT_FALSE(cadence.begins({}));
  EXPECT_EQ(cadence.now(), planned);
}

TEST(CheckpointCadence, does_not_take_a_plan_that_loses_more_than_the_job_allows) {
  spec::CheckpointPolicy policy;
  policy.max_lost_seconds = 300;
  const plan::CheckpointCadence planned{.interval_seconds = 700, .worst_lost_seconds = 720, .stall_seconds = 1};
  EXPECT_LE(CheckpointCadence(policy, assumed(), planned).now().worst_lost_seconds, 300);
}

TEST(CheckpointCadence, the_first_write_of_an_unknown_storage_has_half_of_the_bound) {
  spec::CheckpointPolicy policy;
  policy.max_lost_seconds = 600;
  CheckpointCadence cadence(policy, {.state_bytes = 1e9, .host_copy_bytes_per_second = 1e9}, std::nullopt);
  EXPECT_DOUBLE_EQ(cadence.now().interval_seconds, 300);
  EXPECT_TRUE(cadence.keeps_bound());
  EXPECT_TRUE(cadence.saved(1, 20, {}));
  EXPECT_NEAR(cadence.now().interval_seconds, 580, 1);
}

TEST(CheckpointCadence, a_dearer_stall_makes_saves_rarer) {
  CheckpointCadence cadence = automatic();
  const double before = cadence.now().interval_seconds;
  EXPECT_TRUE(cadence.saved(4, 13, {0, 0}));
  EXPECT_NEAR(cadence.now().interval_seconds / before, 2, 0.01) << "the root of it";
}

TEST(CheckpointCadence, failures_make_saves_more_frequent) {
  CheckpointCadence cadence = automatic();
  cadence.saved(1, 10, {0, 3600});
  const double before = cadence.now().interval_seconds;
  EXPECT_TRUE(cadence.saved(1, 10, {3, 7200}));
  EXPECT_LT(cadence.now().interval_seconds, before / 5);
}

TEST(CheckpointCadence, failures_count_once_a_save_was_measured) {
  CheckpointCadence cadence = automatic();
  const double planned = cadence.now().interval_seconds;
  EXPECT_FALSE(cadence.begins({3, 7200})) << "what a save costs is not known yet";
  EXPECT_EQ(cadence.now().interval_seconds, planned);
  EXPECT_EQ(cadence.figures().at("failures"), 3);
  EXPECT_TRUE(cadence.saved(1, 10, {3, 7200}));
  EXPECT_LT(cadence.now().interval_seconds, planned / 5);
}

TEST(CheckpointCadence, one_slow_copy_among_several_does_not_count) {
  CheckpointCadence cadence = automatic();
  for (int i = 0; i < 4; ++i) cadence.saved(1, 10, {});
  const double before = cadence.now().interval_seconds;
  EXPECT_FALSE(cadence.saved(60, 70, {}));
  EXPECT_EQ(cadence.now().interval_seconds, before);
}

TEST(CheckpointCadence, a_little_more_or_less_changes_nothing) {
  CheckpointCadence cadence = automatic();
  const double before = cadence.now().interval_seconds;
  EXPECT_FALSE(cadence.saved(1.2, 11, {}));
  EXPECT_EQ(cadence.now().interval_seconds, before);
}

TEST(CheckpointCadence, the_work_that_may_be_lost_is_a_hard_bound_and_has_the_write_in_it) {
  CheckpointCadence cadence = automatic(600);
  for (const double durable : {10.0, 60.0, 200.0, 250.0}) {
    for (int i = 0; i < 20; ++i) cadence.stepped(1);
    cadence.saved(1, durable, {});
    // The state of the checkpoint before is gone back to until the next one is durable.
    EXPECT_LE(begins_after(cadence) + durable, 600) << durable;
    EXPECT_GE(begins_after(cadence), durable - 1) << "two saves would overlap";
    EXPECT_TRUE(cadence.keeps_bound());
  }
}

TEST(CheckpointCadence, the_bound_counts_also_where_the_change_is_small) {
  CheckpointCadence cadence = automatic(600);
  cadence.saved(1, 10, {});
  const double before = cadence.now().interval_seconds;
  EXPECT_TRUE(cadence.saved(1, 50, {})) << "40 s of 590 would pass for noise";
  EXPECT_LE(cadence.now().interval_seconds, before - 39);
}

TEST(CheckpointCadence, saves_do_not_overlap_and_a_bound_that_storage_cannot_keep_is_told) {
  CheckpointCadence cadence = automatic(600);
  EXPECT_TRUE(cadence.saved(1, 900, {}));
  EXPECT_GE(cadence.now().interval_seconds, 899);
  EXPECT_FALSE(cadence.keeps_bound());
  EXPECT_NE(cadence.describe().find("storage is too slow for 10m"), std::string::npos) << cadence.describe();
}

TEST(CheckpointCadence, does_what_the_job_says) {
  spec::CheckpointPolicy policy;
  policy.every_seconds = 100;
  CheckpointCadence cadence(policy, assumed(), std::nullopt);
  EXPECT_FALSE(cadence.saved(50, 5000, {9, 100}));
  EXPECT_FALSE(cadence.is_due(99.9));
  EXPECT_TRUE(cadence.is_due(100));
  policy.every_seconds = 0;
  EXPECT_FALSE(CheckpointCadence(policy, assumed(), std::nullopt).is_due(1e9));
}

TEST(CheckpointCadence, the_next_generation_goes_on_from_what_was_measured) {
  CheckpointCadence first = automatic();
  first.saved(4, 13, {});
  CheckpointCadence second = automatic();
  second.remember(first.memory());
  EXPECT_FALSE(second.begins({}));
  EXPECT_EQ(second.now().interval_seconds, first.now().interval_seconds);
}

TEST(CheckpointCadence, what_it_does_not_understand_is_passed_over) {
  for (const char* text : {"null", "3", "[]", "{}", R"({"interval_seconds": "x", "stall_seconds": 3})",
                           R"({"interval_seconds": 5, "stall_seconds": [1], "durable_seconds": []})"}) {
    CheckpointCadence cadence = automatic();
    cadence.remember(nlohmann::json::parse(text));
    EXPECT_EQ(cadence.now(), automatic().now()) << text;
  }
}

}  // namespace
}  // namespace lockstep::engine
