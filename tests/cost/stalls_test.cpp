// Stalls: how likely a layout is to be hit, and what the search and the memory make of it.
#include "lockstep/cost/profile/stalls.h"

#include <cmath>

#include <gtest/gtest.h>

#include "lockstep/cost/pricer/pricer.h"

namespace lockstep::cost {
namespace {

plan::Layout pipeline() {
  plan::Layout layout{.pp = 2, .dp = 4, .tp = 2};
  layout.schedule = plan::Schedule::kOneForwardOneBackward;
  layout.sequence_parallel = true;
  return layout;
}

// One run in three with a pipeline takes 1.5 s more a slot; none without.
Stalls one_in_three() {
  Stalls stalls{.runs = 300, .stalled = 50};
  stalls.odds = {-50, 0, 0, 0, 0, 0, 50 - std::log(2.0)};
  stalls.seconds = {std::log(1.5)};
  return stalls;
}

Pricer pricer_with(const Stalls& stalls) {
  Profile profile = profile_for("H100");
  profile.fitted->stalls = stalls;
  profile.fitted->facts.keeps_gathered_inputs = true;
  profile.fitted->facts.sequence_parallel = true;
  return Pricer(spec::load_model("llama2-7b"), spec::load_cluster("2x8xH100"), profile, {});
}

const plan::BatchPlan kBatch{.micro = 1, .accumulation = 16, .global_sequences = 64, .sequence_length = 4096};

TEST(Stall, is_unknown_to_a_profile_that_saw_none) {
  const Stall stall = stall_of(Stalls{}, pipeline(), 16, 8, 0);
  EXPECT_EQ(stall.probability, 0);
  EXPECT_EQ(expected_stall_seconds(stall, 2.0), 0);
}

TEST(Stall, takes_its_seconds_in_every_slot_of_the_step) {
  const Stall stall = stall_of(one_in_three(), pipeline(), 16, 8, 0);
  EXPECT_NEAR(stall.probability, 1.0 / 3, 1e-9);
  EXPECT_NEAR(stall.seconds, 17 * 1.5, 1e-9);
}

TEST(Stall, is_expected_at_the_mean_of_rates_not_of_times) {
  const Stall stall{.probability = 0.5, .seconds = 9};
  EXPECT_NEAR(expected_stall_seconds(stall, 1), 1 / (0.5 / 1 + 0.5 / 10) - 1, 1e-12);
}

TEST(Stall, makes_the_step_of_a_pipeline_longer_and_leaves_others_alone) {
  const Pricer ordinary = pricer_with({}), stalling = pricer_with(one_in_three());
  const Price before = ordinary.price(pipeline(), kBatch), after = stalling.price(pipeline(), kBatch);
  EXPECT_GT(after.step_seconds(), 1.2 * before.step_seconds());
  EXPECT_NEAR(after.step_seconds() / before.step_seconds(),
              1 + after.stall_seconds / (after.step_seconds() - after.stall_seconds), 0.02);
  plan::Layout flat{.dp = 8, .tp = 2};
  flat.sequence_parallel = true;
  const plan::BatchPlan batch{.micro = 1, .accumulation = 8, .global_sequences = 64, .sequence_length = 4096};
  EXPECT_DOUBLE_EQ(stalling.price(flat, batch).step_seconds(), ordinary.price(flat, batch).step_seconds());
}

// A host that waits does not run ahead: gathered inputs are freed at once.
TEST(Stall, leaves_less_memory_in_use) {
  const Pricer certain = pricer_with(certain_stall()), ordinary = pricer_with({});
  plan::Layout flat{.dp = 8, .tp = 2};
  flat.sequence_parallel = true;
  const plan::BatchPlan batch{.micro = 1, .accumulation = 8, .global_sequences = 64, .sequence_length = 4096};
  EXPECT_LT(certain.price(flat, batch).memory.activations, 0.95 * ordinary.price(flat, batch).memory.activations);
}

TEST(Stall, comes_back_from_a_profile_file) {
  Profile profile = profile_for("H100");
  profile.fitted->stalls = one_in_three();
  const Profile read = read_profile(to_json(profile), "test");
  EXPECT_EQ(read.fitted->stalls, profile.fitted->stalls);
}

}  // namespace
}  // namespace lockstep::cost
