// Expected figures are worked out by hand, never by the code under test.
#include "lockstep/cost/step_time.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep::cost {
namespace {

// One layer, 64 wide, 4 heads, 256 tokens in the vocabulary; two sequences of 16. Multiply-adds per token: 64 x (192 +
// 64 + 256 + 256 + 256) = 65,536, so 4,194,304 FLOPs forward for 32 tokens; attention 2 x 8 heads x 16^2 x 16 = 65,536.
// 67,520 parameters: 64 x (256 + 16) + 49,984 + 128.
Workload tiny() {
  Workload workload;
  workload.model.arch = spec::Arch::kGpt;
  workload.model.layers = 1;
  workload.model.hidden = 64;
  workload.model.heads = workload.model.kv_heads = 4;
  workload.model.head_dim = 16;
  workload.model.ffn_hidden = 256;
  workload.model.vocab = 256;
  workload.model.max_sequence = 16;
  workload.model.tied_embeddings = true;
  workload.batch = {.micro = 2, .accumulation = 1, .global_sequences = 4, .sequence_length = 16};
  return workload;
}

// A machine with 1 GFLOP/s for everything, memory and operators for nothing, 1 us per byte of all-reduce.
Profile simple_machine() {
  Profile profile;
  profile.matmuls = {{MatmulKind::kForward, spec::Precision::kFp32, 64, 64, 64, 1e9, 0}};
  profile.memory_bytes_per_second = 1e30;
  profile.optimizer_bytes_per_second = 28e6;
  profile.collectives = {{CollectiveOp::kAllReduce, 2, 1024, 1024e-6, 0},
                         {CollectiveOp::kAllReduce, 2, 1 << 30, 1073.741824, 0}};
  profile.peak_flops = 1e9;
  return profile;
}

plan::Layout two_ranks() {
  plan::Layout layout;
  layout.dp = 2;
  return layout;
}

TEST(StepTime, adds_compute_optimizer_and_all_reduce) {
  const plan::TimeBreakdown time = price_step(simple_machine(), tiny(), two_ranks());
  EXPECT_NEAR(time.compute, 3 * (4194304 + 65536) / 1e9, 1e-9);
  EXPECT_NEAR(time.optimizer, 67520 * 28 / 28e6, 1e-9);
  EXPECT_NEAR(time.dp_comm, 4 * 67520 * 1e-6, 1e-6);
  EXPECT_EQ(time.tp_comm + time.pp_comm + time.bubble + time.other, 0);
}

TEST(StepTime, accumulation_repeats_compute_but_not_the_rest) {
  Workload workload = tiny();
  workload.batch.accumulation = 3;
  workload.batch.global_sequences = 12;
  const plan::TimeBreakdown once = price_step(simple_machine(), tiny(), two_ranks());
  const plan::TimeBreakdown thrice = price_step(simple_machine(), workload, two_ranks());
  EXPECT_DOUBLE_EQ(thrice.compute, 3 * once.compute);
  EXPECT_DOUBLE_EQ(thrice.optimizer, once.optimizer);
  EXPECT_DOUBLE_EQ(thrice.dp_comm, once.dp_comm);
}

TEST(StepTime, one_rank_reduces_nothing) { EXPECT_EQ(price_step(simple_machine(), tiny(), {}).dp_comm, 0); }

TEST(StepTime, overlap_hides_all_but_the_last_bucket_and_never_more_than_backward) {
  Profile profile = simple_machine();
  Workload workload = tiny();
  workload.bucket_mib = 4 * 67520 / 4.0 / (1024 * 1024);  // four buckets
  const double all = price_step(profile, workload, two_ranks()).dp_comm;
  profile.overlap = 1;
  const double backward = 2 * (4194304 + 65536) / 1e9;
  EXPECT_NEAR(all - price_step(profile, workload, two_ranks()).dp_comm, backward, 1e-9);  // backward is the shorter one
  profile.matmuls[0].flops_per_second = 1e6;
  EXPECT_NEAR(price_step(profile, workload, two_ranks()).dp_comm, all / 4, 1e-6);
}

TEST(StepTime, measured_operators_replace_the_traffic_estimate) {
  Profile profile = simple_machine();
  const double before = price_step(profile, tiny(), two_ranks()).compute;
  profile.pointwise = {{PointwiseKernel::kGelu, spec::Precision::kFp32, 32 * 256, 0.25, 0.5, 0}};
  EXPECT_NEAR(price_step(profile, tiny(), two_ranks()).compute - before, 0.75, 1e-9);
  profile.attention = {{spec::Precision::kFp32, true, 8, 16, 16, 1.0, 2.0, 0}};
  EXPECT_NEAR(price_step(profile, tiny(), two_ranks()).compute - before, 3.75 - 3 * 65536 / 1e9, 1e-9);
}

TEST(StepTime, product_rates_are_exact_at_measured_shapes_and_between_them_elsewhere) {
  Profile profile;
  profile.matmuls = {{MatmulKind::kForward, spec::Precision::kFp32, 64, 64, 64, 1e9, 0},
                     {MatmulKind::kForward, spec::Precision::kFp32, 1024, 1024, 1024, 4e9, 0}};
  const auto rate = [&](std::int64_t size) {
    return *matmul_flops_per_second(profile, MatmulKind::kForward, spec::Precision::kFp32, size, size, size);
  };
  EXPECT_DOUBLE_EQ(rate(64), 1e9);
  EXPECT_DOUBLE_EQ(rate(1024), 4e9);
  EXPECT_NEAR(rate(256), 2e9, 1);  // half way on the log scales
  EXPECT_FALSE(matmul_flops_per_second(profile, MatmulKind::kForward, spec::Precision::kBf16, 1, 1, 1).has_value());
}

TEST(StepTime, faster_hardware_is_never_slower) {
  const Profile base = simple_machine();
  const double seconds = price_step(base, tiny(), two_ranks()).total();
  Profile faster = base;
  faster.matmuls[0].flops_per_second *= 2;
  EXPECT_LT(price_step(faster, tiny(), two_ranks()).total(), seconds);
  faster = base;
  for (CollectivePoint& point : faster.collectives) point.seconds /= 2;
  EXPECT_LT(price_step(faster, tiny(), two_ranks()).total(), seconds);
  faster = base;
  faster.optimizer_bytes_per_second *= 2;
  EXPECT_LT(price_step(faster, tiny(), two_ranks()).total(), seconds);
  Profile slow_memory = base;
  slow_memory.memory_bytes_per_second = 1e6;
  EXPECT_GT(price_step(slow_memory, tiny(), two_ranks()).total(), seconds);
  faster = base;
  faster.overlap = 0.5;
  EXPECT_LE(price_step(faster, tiny(), two_ranks()).total(), seconds);
}

TEST(StepTime, checks_correct_the_tables_and_set_the_width) {
  Profile profile = simple_machine();
  EXPECT_EQ(correction_of(profile, tiny().model).factor, 1);
  EXPECT_EQ(correction_of(profile, tiny().model).half_width, 0);
  profile.checks = {{"a", CheckFamily::kTransformer, 1.0, 1.0, 0},
                    {"b", CheckFamily::kTransformer, 1.0, 1.21, 0},
                    {"c", CheckFamily::kImage, 1.0, 7.0, 0}};
  const Correction correction = correction_of(profile, tiny().model);
  EXPECT_EQ(correction.checks, 2);
  EXPECT_NEAR(correction.factor, 1.1, 1e-12);
  // Logarithms 0 and 0.190620: deviation 0.134789; t(0.95, 1) = 6.314; sqrt(1 + 1/2) = 1.224745.
  EXPECT_NEAR(correction.half_width, 6.314 * 0.134789 * 1.224745, 1e-4);
  profile.checks[0].spread = profile.checks[1].spread = 0.05;
  EXPECT_GT(correction_of(profile, tiny().model).half_width, correction.half_width);
}

TEST(StepTime, prediction_is_the_corrected_price_with_rates_in_order) {
  Profile profile = simple_machine();
  profile.checks = {{"a", CheckFamily::kTransformer, 1.0, 1.4, 0.01},
                    {"b", CheckFamily::kTransformer, 1.0, 1.5, 0.01},
                    {"c", CheckFamily::kTransformer, 1.0, 1.45, 0.01}};
  const StepPrediction predicted = predict_step(profile, tiny(), two_ranks());
  const plan::Prediction& p = predicted.prediction;
  const double factor = std::cbrt(1.4 * 1.5 * 1.45);
  EXPECT_NEAR(p.step_seconds.expected, factor * price_step(profile, tiny(), two_ranks()).total(), 1e-9);
  EXPECT_DOUBLE_EQ(p.step_seconds.expected, predicted.breakdown.total());
  EXPECT_DOUBLE_EQ(p.tokens_per_second.expected, 4 * 16 / p.step_seconds.expected);
  EXPECT_DOUBLE_EQ(p.samples_per_second.expected, 4 / p.step_seconds.expected);
  EXPECT_LT(p.step_seconds.low, p.step_seconds.expected);
  EXPECT_LT(p.tokens_per_second.low, p.tokens_per_second.expected);
  EXPECT_LT(p.tokens_per_second.expected, p.tokens_per_second.high);
  EXPECT_DOUBLE_EQ(p.tokens_per_second.high * p.step_seconds.low, 64);
  EXPECT_GT(p.mfu.expected, 0);
}

TEST(StepTime, a_profile_without_what_is_needed_says_so) {
  Profile profile = simple_machine();
  profile.collectives.clear();
  EXPECT_THROW(price_step(profile, tiny(), two_ranks()), UserError);
  profile = simple_machine();
  profile.matmuls.clear();
  EXPECT_THROW(price_step(profile, tiny(), two_ranks()), UserError);
}

}  // namespace
}  // namespace lockstep::cost
