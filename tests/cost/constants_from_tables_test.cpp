#include "lockstep/cost/profile/constants_from_tables.h"
#include "lockstep/cost/engine_memory.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/cost/gemm.h"
#include "lockstep/cost/least_squares.h"
#include "lockstep/cost/links.h"
#include "lockstep/cost/pricer/pricer.h"

namespace lockstep::cost {
namespace {

constexpr double kMemoryRate = 1e12;  // after kStreamEfficiency

// A device of round figures: 100 TFLOP/s, 1 TB/s reached, 100 GB/s between ranks.
spec::NodeGroup node() {
  spec::NodeGroup group;
  group.nodes = 1;
  group.devices_per_node = 4;
  group.device = {.kind = "round",
                  .memory_bytes = 80e9,
                  .memory_bytes_per_second = kMemoryRate / kStreamEfficiency,
                  .peak_bf16_flops = 100e12,
                  .peak_fp32_flops = 10e12};
  group.intra.bytes_per_second = 100e9;
  return group;
}

Constants truth() {
  Constants constants;
  constants.gemm_efficiency = 0.6;
  constants.gemm_m_half = 350;
  constants.gemm_n_half = 40;
  constants.gemm_k_half = 150;
  constants.gemm_backward = 1.15;
  constants.fp8_speedup = 1.4;
  constants.attention_efficiency = 0.3;
  constants.attention_half = 900;
  constants.attention_backward = 1.6;
  constants.intra_efficiency = 0.5;
  constants.intra_latency = 20e-6;
  return constants;
}

// Seconds of [m,k] x [k,n] by the formula, written out again.
double gemm(double m, double n, double k) {
  const Constants c = truth();
  return 2 * m * n * k / (100e12 * c.gemm_efficiency) * (1 + c.gemm_m_half / m) * (1 + c.gemm_n_half / n) *
         (1 + c.gemm_k_half / k);
}

void add_products(Profile& profile, spec::Precision precision, double speedup) {
  for (const double m : {512.0, 2048.0, 8192.0}) {
    for (const double hidden : {192.0, 1024.0, 4096.0}) {
      for (const auto& [n, k] : {std::pair{3 * hidden, hidden}, std::pair{hidden, 4 * hidden}}) {
        const double flops = 2 * m * n * k;
        const double backward = truth().gemm_backward;
        const auto add = [&](MatmulKind kind, double seconds) {
          profile.matmuls.push_back({kind, precision, static_cast<std::int64_t>(m), static_cast<std::int64_t>(n),
                                     static_cast<std::int64_t>(k), flops / seconds * speedup, 0.01});
        };
        add(MatmulKind::kForward, gemm(m, n, k));
        add(MatmulKind::kInputGradient, backward * gemm(m, k, n));
        add(MatmulKind::kWeightGradient, backward * gemm(n, k, m));
      }
    }
  }
}

Profile synthetic() {
  Profile profile;
  const Constants c = truth();
  profile.peak_flops = 60e12;
  profile.memory_bytes_per_second = kMemoryRate;
  add_products(profile, spec::Precision::kFp32, 0.1);  // not the ones that count
  add_products(profile, spec::Precision::kBf16, 1.0);
  add_products(profile, spec::Precision::kFp8, c.fp8_speedup);
  for (const std::int64_t sequence : {512, 1024, 4096}) {
    for (const std::int64_t head_dim : {64, 128}) {
      const double s = static_cast<double>(sequence), d = static_cast<double>(head_dim);
      const double flops = 2 * 32 * s * s * d;
      const double forward =
          flops / (100e12 * c.attention_efficiency) * (1 + c.attention_half / s) * (d + 32) / d * 0.8;
      profile.attention.push_back(
          {spec::Precision::kBf16, true, 32, sequence, head_dim, forward, 2.5 * c.attention_backward * forward, 0.01});
    }
  }
  profile.operator_seconds = 5e-6;
  profile.backward_operator_seconds = 8e-6;
  profile.optimizer_bytes_per_second = 0.5e12;
  profile.framework_bytes = 3e8;
  profile.overlap = 0.7;
  for (const std::int64_t bytes : {1 << 10, 1 << 20, 1 << 24, 1 << 28}) {
    // Four ranks: 2 x 3 ring steps, 2 x 3/4 of the bytes.
    const double seconds = 6 * c.intra_latency + 1.5 * static_cast<double>(bytes) / (100e9 * c.intra_efficiency);
    profile.collectives.push_back({CollectiveOp::kAllReduce, 4, bytes, seconds, 0.01});
  }
  return profile;
}

void expect_near(double fitted, double expected, double share, const char* what) {
  EXPECT_NEAR(fitted / expected, 1.0, share) << what;
}

TEST(LeastSquares, finds_the_bottom_of_a_curved_valley) {
  // Rosenbrock's: minimum at (1, 1).
  const std::vector<double> x = least_squares({-1.2, 1.0}, [](const std::vector<double>& at) {
    return std::vector<double>{10 * (at[1] - at[0] * at[0]), 1 - at[0]};
  });
  EXPECT_NEAR(x[0], 1, 1e-6);
  EXPECT_NEAR(x[1], 1, 1e-6);
}

TEST(ConstantsFromTables, gives_back_the_constants_that_made_the_tables) {
  const Constants fitted = constants_from_tables(synthetic(), node());
  const Constants expected = truth();
  for (const ConstantInfo& info : constant_table()) {
    for (const auto member :
         {&Constants::gemm_efficiency, &Constants::gemm_m_half, &Constants::gemm_n_half, &Constants::gemm_k_half,
          &Constants::gemm_backward, &Constants::fp8_speedup, &Constants::attention_efficiency,
          &Constants::attention_half, &Constants::attention_backward, &Constants::intra_efficiency,
          &Constants::intra_latency}) {
      if (info.member == member) expect_near(fitted.*member, expected.*member, 0.02, info.name);
    }
  }
}

TEST(ConstantsFromTables, scale_rates_to_what_the_pricer_counts) {
  Profile profile = synthetic();
  // GELU and norms at 24 bytes of traffic per element of [tokens, hidden] and pass; the loss twice over its logits.
  const double elements = 1 << 22;
  for (const PointwiseKernel kernel :
       {PointwiseKernel::kGelu, PointwiseKernel::kLayerNorm, PointwiseKernel::kResidualAdd}) {
    profile.pointwise.push_back(
        {kernel, spec::Precision::kBf16, 1 << 22, elements * 4 / kMemoryRate, elements * 8 / kMemoryRate, 0.01});
  }
  profile.pointwise.push_back(
      {PointwiseKernel::kCrossEntropy, spec::Precision::kBf16, 1 << 22, 2 * elements * 4 / kMemoryRate, 0, 0.01});
  const Constants fitted = constants_from_tables(profile, node());
  // Forward of a GPT layer: 2 norms, 2 residuals, GELU over four times the width: 8 x 4 = 32 bytes per element; the
  // pricer counts (2 x 2 + 2 x 3 + 2 x 4) x 2 = 36. Backward is twice forward in both.
  expect_near(fitted.pointwise_passes, 32.0 / 36, 1e-6, "pointwise_passes");
  expect_near(fitted.logits_passes, 2, 1e-6, "logits_passes");
  // bf16: 30 bytes per parameter at 0.5 TB/s; the pricer counts 2 x 4 + 2 x (12 + 2) = 36 at 1 TB/s.
  expect_near(fitted.optimizer_passes, 60.0 / 36, 1e-9, "optimizer_passes");
  // qkv, attention, output, two norms, two residuals, up, GELU, down.
  expect_near(fitted.layer_host_seconds, 10 * 5e-6, 1e-9, "layer_host_seconds");
  expect_near(fitted.layer_host_backward, 1.6, 1e-9, "layer_host_backward");
  expect_near(fitted.dp_exposed, 0.3, 1e-9, "dp_exposed");
  EXPECT_EQ(fitted.inter_efficiency, Constants{}.inter_efficiency) << "nothing was measured between nodes";
}

spec::Model small_llama() {
  spec::Model model;
  model.arch = spec::Arch::kLlama;
  model.layers = 8;
  model.hidden = 1024;
  model.heads = model.kv_heads = 8;
  model.head_dim = 128;
  model.ffn_hidden = 2816;
  model.vocab = 32000;
  model.max_sequence = 2048;
  model.bias = false;
  return model;
}

// Checks that took `factors` times what the constants of the tables say.
Profile checked(const std::vector<double>& factors) {
  Profile profile = synthetic();
  Profile priced = profile;
  priced.fitted = Fitted{.constants = constants_from_tables(profile, node())};
  priced.fitted->facts.reduces_each_micro_batch = false;
  spec::Cluster cluster;
  cluster.groups = {node()};
  const Pricer pricer(small_llama(), cluster, priced, {});
  plan::Layout layout;
  layout.dp = 4;
  layout.precision = spec::Precision::kBf16;
  for (std::size_t i = 0; i < factors.size(); ++i) {
    const auto micro = static_cast<std::int64_t>(i + 1);
    const double seconds =
        pricer
            .price(layout, {.micro = micro, .accumulation = 2, .global_sequences = 8 * micro, .sequence_length = 2048})
            .step_seconds();
    const CheckWorkload workload{small_llama(), spec::Precision::kBf16, 4, micro, 2, 2048};
    profile.checks.push_back({.name = "check",
                              .predicted_seconds = 1,
                              .measured_seconds = factors[i] * seconds,
                              .spread = 0.01,
                              .workload = workload});
  }
  return profile;
}

TEST(FittedFromTables, slows_every_part_by_what_whole_steps_took_longer) {
  const Fitted fitted = fitted_from_tables(checked({1.2, 1.2, 1.2}), node());
  const Constants tables = constants_from_tables(synthetic(), node());
  expect_near(fitted.constants.gemm_efficiency, tables.gemm_efficiency / 1.2, 1e-9, "gemm_efficiency");
  expect_near(fitted.constants.optimizer_passes, tables.optimizer_passes * 1.2, 1e-9, "optimizer_passes");
  EXPECT_DOUBLE_EQ(fitted.residuals.time, 0.03) << "steady checks leave the floor";
  EXPECT_EQ(fitted.hardware, "round");
  EXPECT_EQ(fitted.runs, 3);
}

TEST(FittedFromTables, scatter_of_the_checks_becomes_the_residual) {
  const Fitted fitted = fitted_from_tables(checked({1.0, 1.1, 1.0 / 1.1}), node());
  // Standard deviation of {0, log 1.1, -log 1.1} is log 1.1; a fourth one is off by sqrt(1 + 1/3) of it.
  EXPECT_NEAR(fitted.residuals.time, std::log(1.1) * std::sqrt(4.0 / 3), 1e-6);
}

TEST(FittedFromTables, without_checks_the_interval_is_wide) {
  EXPECT_EQ(fitted_from_tables(synthetic(), node()).residuals.time, 0.3);
}

TEST(FittedFromTables, needs_matrix_products) {
  try {
    constants_from_tables(Profile{}, node());
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
  }
}

// Measured on one H200 by `lockstep calibrate --device cuda`. Where a changed formula breaks this:
// `lockstep calibrate --tables specs/profiles/H200-lockstep.json`.
TEST(FittedFromTables, the_profile_kept_for_h200_prices_the_steps_measured_there) {
  Profile profile = find_profile("H200-lockstep");
  profile.dense.reset();  // the checks went through the general path
  ASSERT_TRUE(profile.fitted.has_value());
  EXPECT_EQ(profile.fitted->facts, lockstep_facts());
  ASSERT_GE(profile.checks.size(), 6u);
  for (const CalibrationCheck& check : profile.checks) {
    ASSERT_TRUE(check.workload.has_value());
    const CheckWorkload& workload = *check.workload;
    const Pricer pricer(workload.model, spec::load_cluster("1x1xH200"), profile,
                        {.sequence_length = workload.sequence_length});
    plan::Layout layout;
    layout.precision = workload.precision;
    plan::Run run{.model = workload.model, .cluster = spec::load_cluster("1x1xH200"), .layout = layout};
    run.batch = {.micro = workload.micro,
                 .accumulation = workload.accumulation,
                 .global_sequences = workload.micro * workload.accumulation,
                 .sequence_length = workload.sequence_length};
    EXPECT_NEAR(pricer.price(layout, run.batch).step_seconds() / check.measured_seconds, 1.0, 0.10) << check.name;
    // The step that was measured kept gradients in fp32, two bytes more.
    const double wider = 2.0 * static_cast<double>(spec::parameter_count(workload.model));
    EXPECT_NEAR((engine_memory(run, 0).total() + wider) / check.peak_bytes, 1.0, 0.05) << check.name;
  }
}

TEST(MeasuredSpeeds, fill_in_what_a_cpu_has_no_datasheet_for) {
  const spec::Cluster cluster = with_measured_speeds(spec::load_cluster("1x4xcpu"), synthetic());
  const spec::NodeGroup& cpu = cluster.groups.front();
  EXPECT_EQ(cpu.device.peak_fp32_flops, 60e12);
  EXPECT_NEAR(cpu.device.memory_bytes_per_second * kStreamEfficiency, kMemoryRate, 1);
  EXPECT_NEAR(cpu.intra.bytes_per_second, 50e9, 1e9);  // the largest message, almost without latency
  const spec::Cluster gpus = spec::load_cluster("1x8xH100");
  EXPECT_EQ(with_measured_speeds(gpus, synthetic()), gpus);
}

TEST(MeasuredSpeeds, refuse_what_was_not_measured) {
  Profile alone = synthetic();
  alone.collectives.clear();
  EXPECT_NO_THROW(with_measured_speeds(spec::load_cluster("1x1xcpu"), alone));
  EXPECT_THROW(with_measured_speeds(spec::load_cluster("1x4xcpu"), alone), UserError);
  EXPECT_THROW(with_measured_speeds(spec::load_cluster("2x4xcpu"), synthetic()), UserError);
}

}  // namespace
}  // namespace lockstep::cost
