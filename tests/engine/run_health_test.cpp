#include "lockstep/engine/run_health.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/engine/same_run.h"
#include "lockstep/nn/torch_compat.h"

namespace lockstep::engine {
namespace {

// Steps `first` to `last` of a loss about `level`.
void train(RunHealth& health, std::int64_t first, std::int64_t last, double level = 3.0) {
  for (std::int64_t step = first; step <= last; ++step) {
    health.observe(step, level + 0.05 * static_cast<double>(step % 3), false);
  }
}

TEST(RunHealth, noise_and_falling_losses_are_healthy) {
  RunHealth health({}, false);
  for (std::int64_t step = 1; step <= 500; ++step) {
    const double loss = 4.0 * std::exp(-0.01 * static_cast<double>(step)) * (1.0 + 0.3 * std::sin(7.0 * step));
    EXPECT_EQ(health.observe(step, loss, false), HealthEvent::kNone) << step;
  }
}

TEST(RunHealth, a_loss_that_stays_high_is_one_spike_until_it_is_usual_again) {
  RunHealth health({}, false);
  train(health, 1, 20);
  EXPECT_EQ(health.observe(21, 60.0, false), HealthEvent::kNone);  // one bad batch
  EXPECT_EQ(health.observe(22, 61.0, false), HealthEvent::kSpikeBegan);
  EXPECT_FALSE(health.is_healthy());
  EXPECT_EQ(health.observe(23, 62.0, false), HealthEvent::kNone);
  health.observe(24, 3.0, false);
  EXPECT_EQ(health.observe(25, 3.0, false), HealthEvent::kSpikeOver);
}

TEST(RunHealth, only_a_checkpoint_that_healthy_steps_follow_is_pinned) {
  RunHealth health({}, false);
  train(health, 1, 20);
  health.saved(20);
  EXPECT_FALSE(health.pinned_step());
  train(health, 21, 25);
  EXPECT_EQ(health.pinned_step(), 20);
  health.saved(25);
  train(health, 26, 27, 80.0);  // the damage may be as old as step 25
  train(health, 28, 60, 80.0);
  health.saved(60);
  EXPECT_EQ(health.pinned_step(), 20);
}

// Losses and norms that are usual.
void train_norms(RunHealth& health, std::int64_t first, std::int64_t last) {
  for (std::int64_t step = first; step <= last; ++step) health.observe(step, 3.0, false, 1.0 + 0.1 * (step % 3));
}

TEST(RunHealth, a_gradient_far_beyond_the_usual_is_an_outlier) {
  RunHealth health({}, false);
  train_norms(health, 1, 20);
  EXPECT_EQ(health.observe(21, 3.0, false, 4.0), HealthEvent::kNone);
  EXPECT_EQ(health.observe(22, 3.0, false, 40.0), HealthEvent::kOutlier);
  EXPECT_TRUE(health.rollback_reason().empty());
  RunHealth strict({.gradient_outlier = spec::OnJump::kStop}, false);
  train_norms(strict, 1, 20);
  EXPECT_THROW(strict.observe(21, 3.0, false, 40.0), UserError);
}

TEST(RunHealth, an_update_is_withheld_where_the_policy_skips) {
  RunHealth health({.most_skips = 2, .spike = spec::OnJump::kSkip, .gradient_outlier = spec::OnJump::kSkip}, false);
  EXPECT_TRUE(health.may_update(99.0, 99.0));  // nothing is usual yet
  train_norms(health, 1, 20);
  EXPECT_TRUE(health.may_update(3.1, 1.2));
  EXPECT_FALSE(health.may_update(9.0, 1.0));
  EXPECT_FALSE(health.may_update(NAN, 1.0));
  EXPECT_FALSE(health.may_update(3.0, 40.0));
  EXPECT_EQ(health.observe(21, 9.0, false, 1.0, true), HealthEvent::kWithheld);
  EXPECT_EQ(health.withheld_steps(), 1);
  EXPECT_THROW(health.observe(22, 9.0, false, 1.0, true), UserError);  // at the limit
  EXPECT_TRUE(RunHealth({}, false).may_update(9.0, 40.0));
}

TEST(RunHealth, rollbacks_are_asked_for_and_bounded) {
  RunHealth health({.nonfinite = spec::OnNonfinite::kRollback, .most_rollbacks = 2}, false);
  for (int round = 0; round < 2; ++round) {
    train(health, 1, 20);
    health.observe(21, NAN, true);
    EXPECT_EQ(health.rollback_reason(), "the gradient was not finite in step 21");
    health.rolled_back();
    EXPECT_TRUE(health.is_healthy());
    EXPECT_TRUE(health.rollback_reason().empty());
  }
  EXPECT_EQ(health.rollbacks(), 2);
  EXPECT_THROW(health.observe(22, NAN, true), UserError);
}

TEST(RunHealth, a_spike_asks_for_a_rollback_once_the_loss_stays_high) {
  RunHealth health({.spike = spec::OnJump::kRollback}, false);
  train(health, 1, 20);
  health.observe(21, 60.0, false);
  EXPECT_TRUE(health.rollback_reason().empty());
  health.observe(22, 61.0, false);
  EXPECT_FALSE(health.rollback_reason().empty());
}

TEST(RunHealth, state_that_is_distrusted_leaves_older_checkpoints_sound) {
  RunHealth health({}, false);
  train(health, 1, 10);
  health.saved(10);
  train(health, 11, 20);
  health.saved(20);
  train(health, 21, 30);
  EXPECT_EQ(health.pinned_step(), 20);
  health.distrust_after(15);
  EXPECT_EQ(health.pinned_step(), 10);
  health.distrust_after(5);
  EXPECT_FALSE(health.pinned_step());
}

TEST(RunHealth, skipped_steps_end_the_run_at_the_limit) {
  RunHealth health({.most_skips = 3}, false);
  EXPECT_EQ(health.observe(1, NAN, true), HealthEvent::kSkipped);
  health.observe(2, NAN, true);
  EXPECT_THROW(health.observe(3, NAN, true), UserError);
  RunHealth strict({.nonfinite = spec::OnNonfinite::kStop}, false);
  EXPECT_THROW(strict.observe(1, 2.0, true), UserError);
}

TEST(RunHealth, a_run_must_not_end_in_a_skipped_step) {
  RunHealth plain({}, false), scaled({}, true);
  for (RunHealth* health : {&plain, &scaled}) {
    health->observe(1, 2.0, false);
    health->require_sound_end(1);
    health->observe(2, 2.0, true);
  }
  EXPECT_THROW(plain.require_sound_end(2), UserError);
  scaled.require_sound_end(2);  // that is how a loss scale is found
  scaled.observe(3, INFINITY, false);
  EXPECT_THROW(scaled.require_sound_end(3), UserError);
}

TEST(RunHealth, tensors_are_finite_though_their_sum_overflows) {
  const torch::Tensor large = torch::full({4}, 3e38F);
  EXPECT_TRUE(is_finite(large));
  EXPECT_TRUE(is_finite(torch::ones({2}, torch::kInt64)));
  EXPECT_FALSE(is_finite(torch::tensor({1.0F, NAN})));
}

TEST(RunHealth, state_that_is_not_finite_is_named_wherever_it_lies) {
  std::vector<torch::Device> devices = {torch::kCPU};
  if (nn::compat::has_cuda()) devices.emplace_back(torch::kCUDA, 0);
  for (const torch::Device device : devices) {
    SCOPED_TRACE(device.str());
    checkpoint::CheckpointPart part;
    const auto add = [&](checkpoint::TensorKind kind, const std::string& name, const torch::Tensor& values) {
      part.pieces.push_back(checkpoint::whole_piece(kind, name, values.to(device)));
    };
    add(checkpoint::TensorKind::kModel, "large", torch::full({4}, 3e38F));  // its sum overflows
    add(checkpoint::TensorKind::kModel, "narrow", torch::ones({4}, torch::kBFloat16));
    add(checkpoint::TensorKind::kOptimizer, "count", torch::ones({2}, torch::kInt64));
    add(checkpoint::TensorKind::kRank, "own", torch::full({1}, NAN));
    EXPECT_EQ(find_not_finite(part), std::nullopt);
    add(checkpoint::TensorKind::kOptimizer, "broken", torch::tensor({1.0F, INFINITY}));
    EXPECT_EQ(find_not_finite(part), "broken");
  }
}

TEST(SameRun, a_difference_names_ranks_and_values) {
  const RunFacts usual = {{"seed", "1"}, {"batch.micro", "4"}}, other = {{"seed", "2"}, {"batch.micro", "4"}};
  EXPECT_TRUE(differences({usual, usual}).empty());
  EXPECT_EQ(differences({usual, other, usual, other}),
            std::vector<std::string>{"ranks 1, 3 have seed 2, ranks 0, 2 have 1"});
  EXPECT_EQ(differences({usual, {{"seed", "1"}}}),
            std::vector<std::string>{"rank 1 has batch.micro nothing, rank 0 has 4"});
}

}  // namespace
}  // namespace lockstep::engine
