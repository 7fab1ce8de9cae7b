// The fused step of one GPU: its memory against what was measured, its time against measured steps, and where the
// pricer uses it.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/base/units.h"
#include "lockstep/cost/fused/memory.h"
#include "lockstep/cost/pricer/pricer.h"
#include "lockstep/cost/profile/profile.h"
#include "lockstep/plan/executor.h"

namespace lockstep::cost {
namespace {

using plan::Recompute;

spec::Model llama(std::int64_t layers, std::int64_t hidden, std::int64_t heads, std::int64_t ffn, std::int64_t vocab,
                  std::int64_t sequence) {
  spec::Model model;
  model.name = "test";
  model.arch = spec::Arch::kLlama;
  model.bias = false;
  model.activation = spec::Activation::kSilu;
  model.layers = layers;
  model.hidden = hidden;
  model.heads = model.kv_heads = heads;
  model.ffn_hidden = ffn;
  model.vocab = vocab;
  model.max_sequence = sequence;
  return model;
}
spec::Model llama_1b() { return llama(24, 2048, 16, 5632, 32000, 2048); }
spec::Model llama_7b() { return llama(32, 4096, 32, 11008, 32000, 2048); }

spec::Device h200() { return spec::load_cluster("H200").groups.front().device; }

FusedPoint point(const spec::Model& model, std::int64_t micro, Recompute recompute,
                 spec::Precision precision = spec::Precision::kBf16) {
  FusedPoint p;
  p.model = model;
  p.micro = micro;
  p.sequence_length = model.max_sequence;
  p.recompute = recompute;
  p.precision = precision;
  return p;
}

// lockstep_gpu_step on an H200, libtorch 2.11, cuDNN 9.19: GiB of arena and libtorch's allocator at the peak.
TEST(FusedMemory, is_what_was_measured) {
  const auto gib = [](const FusedPoint& p) { return fused_memory(p.run()).total() / kGiB; };
  EXPECT_NEAR(gib(point(llama_1b(), 16, Recompute::kNone)), 70.206, 0.01);
  EXPECT_NEAR(gib(point(llama_1b(), 8, Recompute::kNone)), 44.093, 0.01);
  EXPECT_NEAR(gib(point(llama_7b(), 2, Recompute::kNone)), 104.860, 0.01);
  EXPECT_NEAR(gib(point(llama(12, 768, 12, 2048, 50304, 1024), 64, Recompute::kNone)), 24.471, 0.01);
  EXPECT_NEAR(gib(point(llama_1b(), 16, Recompute::kSelective, spec::Precision::kFp8)), 59.628, 0.01);
  EXPECT_NEAR(gib(point(llama_1b(), 16, Recompute::kFull)), 26.312, 0.01);
  EXPECT_NEAR(gib(point(llama_7b(), 4, Recompute::kFull)), 92.335, 0.01);
}

TEST(FusedMemory, grows_with_every_choice_that_keeps_more) {
  const auto total = [](const FusedPoint& p) { return fused_memory(p.run()).total(); };
  const FusedPoint base = point(llama_1b(), 8, Recompute::kSelective);
  EXPECT_LT(total(point(llama_1b(), 8, Recompute::kFull)), total(base));
  EXPECT_LT(total(base), total(point(llama_1b(), 8, Recompute::kNone)));
  EXPECT_LT(total(base), total(point(llama_1b(), 16, Recompute::kSelective)));
  FusedPoint summed = base, narrow = base;
  summed.accumulation = 2;  // gradients in fp32
  narrow.bf16_states = true;
  EXPECT_NEAR(total(summed) - total(base), 2 * base.run().body_parameters(), 1e7);
  EXPECT_NEAR(total(base) - total(narrow), 4 * base.run().parameters(), 1);
  EXPECT_LT(fused_memory_floor(summed.run()), total(base));
}

TEST(FusedMemory, counts_tied_embeddings_once_and_shared_keys_as_they_are) {
  spec::Model model = llama_1b();
  const double apart = fused_memory(point(model, 8, Recompute::kNone).run()).total();
  model.tied_embeddings = true;
  EXPECT_FALSE(plan::why_model_is_not_fused(model, spec::Precision::kBf16).has_value());
  const double table = 32000.0 * 2048;
  EXPECT_NEAR(apart - fused_memory(point(model, 8, Recompute::kNone).run()).total(), 14 * table, 1);
  model.kv_heads = 4;
  EXPECT_EQ(point(model, 8, Recompute::kNone).run().qkv_width(), 2048 + 2 * 512);
  model.kv_heads = 5;
  EXPECT_TRUE(plan::why_model_is_not_fused(model, spec::Precision::kBf16).has_value());
}

TEST(FusedMemory, cuts_the_logits_into_equal_chunks) {
  EXPECT_EQ(fused_chunk_rows(point(llama_1b(), 16, Recompute::kNone).run()), 32768);
  EXPECT_EQ(fused_chunk_rows(point(llama_1b(), 64, Recompute::kNone).run()), 32768);
  const double rows = fused_chunk_rows(point(llama_1b(), 7 * 9, Recompute::kNone).run());
  EXPECT_EQ(std::fmod(63 * 2048, rows), 0);
  EXPECT_LE(rows * 32000 * 2, 3200 * kMiB);
}

TEST(FusedTime, counts_no_more_than_the_peak_allows_and_no_less_than_the_work) {
  const FusedRun run = point(llama_1b(), 16, Recompute::kNone).run();
  const double seconds = fused_seconds(run, {}, h200()).total();
  const double flops = 6 * (run.matrix_parameters() + run.head_parameters()) * run.rows();
  EXPECT_GT(seconds, flops / h200().peak_bf16_flops);
  EXPECT_LT(seconds, 3 * flops / h200().peak_bf16_flops);
  const FusedOperationSeconds operations = fused_operation_seconds(run, {}, h200());
  double sum = 0;
  for (const double each : operations) sum += each;
  EXPECT_NEAR(seconds, sum, 1e-9 * sum);  // every operation is in the step, and once
}

TEST(FusedTime, knows_what_recomputing_and_the_norm_cost) {
  const auto seconds = [](Recompute recompute, bool norm) {
    FusedRun run = point(llama_7b(), 2, recompute).run();
    run.gradient_norm = norm;
    return fused_seconds(run, {}, h200()).total();
  };
  const double none = seconds(Recompute::kNone, false);
  EXPECT_GT(seconds(Recompute::kSelective, false), none);
  EXPECT_LT(seconds(Recompute::kSelective, false), 1.03 * none);
  EXPECT_GT(seconds(Recompute::kFull, false), 1.15 * none);
  EXPECT_LT(seconds(Recompute::kFull, false), 1.35 * none);
  EXPECT_GT(seconds(Recompute::kNone, true), none);
}

TEST(FusedTime, products_that_do_swiglu_save_its_passes) {
  using Op = FusedOperation;
  const auto seconds = [](const FusedRun& run, Op op) {
    return fused_operation_seconds(run, {}, h200())[static_cast<std::size_t>(op)];
  };
  FusedRun fused = point(llama_1b(), 16, Recompute::kNone).run();
  EXPECT_EQ(seconds(fused, Op::kSwiglu) + seconds(fused, Op::kSwigluBackward) + seconds(fused, Op::kGateUp), 0.0);
  FusedRun eight = fused, odd = fused, half = fused;
  eight.fp8 = true;
  odd.ffn += 64;    // neither way
  half.ffn += 128;  // forward alone
  for (const FusedRun& run : {eight, odd}) {
    EXPECT_GT(seconds(run, Op::kSwiglu), 0.0);
    EXPECT_GT(seconds(run, Op::kSwigluBackward), 0.0);
    EXPECT_EQ(seconds(run, Op::kGateUpSwiglu) + seconds(run, Op::kDownDataSwiglu), 0.0);
  }
  EXPECT_GT(seconds(half, Op::kGateUpSwiglu), 0.0);
  EXPECT_GT(seconds(half, Op::kSwigluBackward), 0.0);
  // By hand: 3 and 5 passes over [rows, ffn] become 1 and 3 of an epilogue, half of which is hidden.
  const double bandwidth = h200().memory_bytes_per_second * FusedConstants{}.stream_efficiency;
  const double passes = 24.0 * 32768 * 5696 * 2 * (3 + 5) / bandwidth, epilogues = 0.5 * passes / 2;
  const double saved = fused_seconds(odd, {}, h200()).total() - fused_seconds(fused, {}, h200()).total();
  EXPECT_GT(saved, 0.9 * (passes - epilogues));
}

// Steps and operations as a device with these constants would show them.
std::vector<FusedPoint> synthetic_points(const FusedConstants& truth) {
  std::vector<FusedPoint> points{
      point(llama(24, 1024, 16, 2816, 32000, 2048), 16, Recompute::kNone),
      point(llama(24, 1536, 12, 4096, 50304, 1024), 32, Recompute::kNone),
      point(llama(32, 2560, 20, 6912, 32000, 2048), 4, Recompute::kFull),
      point(llama(8, 512, 8, 1536, 32000, 1024), 64, Recompute::kNone),
      point(llama(24, 4096, 32, 14336, 32000, 2048), 2, Recompute::kSelective),
      point(llama(32, 2560, 20, 6912, 32000, 2048), 8, Recompute::kSelective, spec::Precision::kFp8)};
  double clock = 0.9;  // the step that is timed call by call may run at another one
  for (FusedPoint& p : points) {
    p.seconds = fused_seconds(p.run(), truth, h200()).total();
    p.peak_bytes = fused_memory(p.run()).total();
    const FusedOperationSeconds operations = fused_operation_seconds(p.run(), truth, h200());
    for (std::size_t i = 0; i < operations.size(); ++i) {
      p.operations.push_back({to_string(static_cast<FusedOperation>(i)), clock * operations[i]});
    }
    p.operations.push_back({"something new", 1e-3});
    clock += 0.05;
  }
  return points;
}

TEST(FusedFit, finds_the_constants_behind_the_steps) {
  FusedConstants truth;
  truth.forward_efficiency = 0.6;
  truth.weight_gradient_efficiency = 0.55;
  truth.attention_backward_efficiency = 0.4;
  truth.stream_efficiency = 0.7;
  truth.optimizer_efficiency = 0.9;
  truth.fp8_speedup = 1.9;
  const FusedProfile fitted = fit_fused({.points = synthetic_points(truth)}, h200());
  EXPECT_NEAR(fitted.constants.forward_efficiency, truth.forward_efficiency, 0.02);
  EXPECT_NEAR(fitted.constants.weight_gradient_efficiency, truth.weight_gradient_efficiency, 0.02);
  EXPECT_NEAR(fitted.constants.stream_efficiency, truth.stream_efficiency, 0.03);
  EXPECT_NEAR(fitted.constants.optimizer_efficiency, truth.optimizer_efficiency, 0.05);
  EXPECT_NEAR(fitted.constants.fp8_speedup, truth.fp8_speedup, 0.08);
  for (const FusedPoint& p : {point(llama_1b(), 16, Recompute::kNone), point(llama_7b(), 4, Recompute::kFull),
                              point(llama(12, 768, 12, 2048, 50304, 1024), 64, Recompute::kNone)}) {
    const double was = fused_seconds(p.run(), truth, h200()).total();
    EXPECT_NEAR(fused_seconds(p.run(), fitted.constants, h200()).total(), was, 0.015 * was) << p.name();
  }
  EXPECT_LT(fitted.time_sigma, 0.03);
  EXPECT_THROW(fit_fused({}, h200()), UserError);
}

Profile with_fused() {
  Profile profile = find_profile("H200-lockstep");
  profile.dense = FusedProfile{.date = "2026-01-02T03:04:05Z", .software = "by hand"};
  profile.dense->points = synthetic_points({});
  profile.dense->time_sigma = 0.04;
  return profile;
}

TEST(FusedProfile, comes_back_the_same_and_is_read_strictly) {
  const Profile profile = with_fused();
  nlohmann::json document = to_json(profile);
  EXPECT_EQ(to_json(read_profile(document, "p.json")), document);
  document["dense"]["constants"]["fp8_speedup"] = 0;
  EXPECT_THROW(read_profile(document, "p.json"), UserError);
  document = to_json(profile);
  document["dense"]["constants"].erase("epilogue_share");  // of a step before there were such products
  EXPECT_EQ(read_profile(document, "p.json").dense->constants.epilogue_share, FusedConstants{}.epilogue_share);
  document["dense"]["constants"].erase("fp8_speedup");
  EXPECT_THROW(read_profile(document, "p.json"), UserError);
  document = to_json(profile);
  document["dense"]["points"][0]["recompute"] = "some";
  EXPECT_THROW(read_profile(document, "p.json"), UserError);
  document = to_json(profile);
  document["dense"]["more"] = 1;
  EXPECT_THROW(read_profile(document, "p.json"), UserError);
}

// Measured on one H200 by `lockstep calibrate --device cuda --fused`. Where a changed formula breaks this:
// `lockstep calibrate --tables specs/profiles/H200-lockstep.json`.
TEST(FusedProfile, the_one_kept_for_h200_prices_the_steps_measured_there) {
  const Profile profile = find_profile("H200-lockstep");
  ASSERT_TRUE(profile.dense.has_value());
  ASSERT_GE(profile.dense->points.size(), 8u);
  double time = 0, memory = 0;
  for (const FusedPoint& p : profile.dense->points) {
    const double step = fused_seconds(p.run(), profile.dense->constants, h200()).total() / p.seconds - 1;
    const double peak = fused_memory(p.run()).total() / p.peak_bytes - 1;
    EXPECT_LT(std::abs(step), 0.06) << p.name();
    EXPECT_LT(std::abs(peak), 0.015) << p.name();
    time += std::abs(step) / static_cast<double>(profile.dense->points.size());
    memory += std::abs(peak) / static_cast<double>(profile.dense->points.size());
  }
  EXPECT_LT(time, 0.03);
  EXPECT_LT(memory, 0.01);
  EXPECT_LT(profile.dense->time_sigma, 0.05);
}

class FusedPricer : public testing::Test {
 protected:
  Price price(const spec::Model& model, const std::function<void(plan::Layout&)>& change = {},
              const std::string& cluster = "1x1xH200") const {
    plan::Layout layout;
    layout.precision = spec::Precision::kBf16;
    if (change) change(layout);
    const Pricer pricer(model, spec::load_cluster(cluster), profile_, {.sequence_length = 2048});
    return pricer.price(layout, {4, 1, 4 * layout.data_ranks(), 2048});
  }
  Profile profile_ = with_fused();
};

TEST_F(FusedPricer, prices_what_the_fused_step_runs) {
  const Price fused = price(llama_1b());
  EXPECT_TRUE(fused.fused);
  FusedRun run = point(llama_1b(), 4, Recompute::kNone).run();
  run.gradient_norm = true;
  EXPECT_EQ(fused.step_seconds(), fused_seconds(run, profile_.dense->constants, h200()).total());
  EXPECT_NEAR(fused.allocated_bytes(), fused_memory(run).total(), 1);
  EXPECT_EQ(fused.time_sigma, 0.04);
  EXPECT_TRUE(price(llama_1b(), [](plan::Layout& l) { l.precision = spec::Precision::kFp8; }).fused);
  EXPECT_TRUE(price(llama_1b(), [](plan::Layout& l) { l.recompute = Recompute::kFull; }).fused);
}

TEST_F(FusedPricer, leaves_everything_else_to_the_general_formulas) {
  spec::Model gpt = llama_1b(), odd = llama_1b();
  gpt.arch = spec::Arch::kGpt;
  odd.vocab = 32001;
  EXPECT_FALSE(price(gpt).fused);
  EXPECT_FALSE(price(odd).fused);
  EXPECT_FALSE(price(llama_1b(), [](plan::Layout& l) { l.precision = spec::Precision::kFp32; }).fused);
  EXPECT_FALSE(price(llama_1b(), [](plan::Layout& l) { l.offload = plan::Offload::kOptimizer; }).fused);
  EXPECT_FALSE(price(
                   llama_1b(), [](plan::Layout& l) { l.dp = 2; }, "1x2xH200")
                   .fused);
  profile_.fitted->facts.trained_share = 0.01;  // adapters
  EXPECT_FALSE(price(llama_1b()).fused);
  profile_.fitted->facts.trained_share = 1;
  profile_.dense.reset();
  EXPECT_FALSE(price(llama_1b()).fused);
}

TEST_F(FusedPricer, has_a_floor_below_every_batch_and_one_stage) {
  plan::Layout layout;
  layout.precision = spec::Precision::kBf16;
  const Pricer pricer(llama_7b(), spec::load_cluster("1x1xH200"), profile_, {.sequence_length = 2048});
  const double floor = pricer.memory_floor(layout);
  for (const Recompute recompute : {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
    layout.recompute = recompute;
    for (const std::int64_t micro : {1, 2, 8}) {
      const plan::BatchPlan batch{micro, 1, micro, 2048};
      const Price price = pricer.price(layout, batch);
      EXPECT_LT(floor, price.memory.total());
      const std::vector<StagePrice> stages = pricer.stages(layout, batch);
      ASSERT_EQ(stages.size(), 1u);
      EXPECT_NEAR(stages[0].forward_seconds + stages[0].backward_seconds + price.time.optimizer, price.step_seconds(),
                  1e-9);
      EXPECT_EQ(stages[0].memory.total(), price.memory.total());
    }
  }
}

}  // namespace
}  // namespace lockstep::cost
