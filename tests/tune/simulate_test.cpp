// The planner's price as evaluator and as prior: what `lockstep plan` says, plus the terms of knobs that plans lack.
#include "lockstep/tune/evaluators/simulate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "../base/expect_user_error.h"
#include "lockstep/base/clock.h"
#include "lockstep/planner/explain/explain.h"
#include "lockstep/tune/job/space.h"
#include "lockstep/tune/models/planner_prior.h"
#include "lockstep/tune/models/statistics.h"

namespace lockstep::tune {
namespace {

using lockstep::testing::user_error;

spec::Job seven_billion() {
  return spec::parse_job(R"(model: llama2-7b
cluster: 1x8xH100
data: {kind: tokens, path: /nowhere/at/all, tokenizer: bytes}
layout: {shard: 8, zero: 3, recompute: selective}
batch: {micro: 2, accumulation: 4, sequence_length: 2048}
steps: 5
)",
                         "job.yaml");
}

const char* const kLayouts = R"(knobs:
  micro_batch: {choices: [1, 2, 4, 8, 16], default: 2}
  accumulation: {choices: [1, 2, 4, 8, 16, 32, 64], default: 4}
  zero: {choices: [0, 1, 2, 3], default: 3}
  tp: {choices: [1, 2, 4, 8], default: 1}
  recompute: {choices: [none, selective, full], default: selective}
constraints: ["micro_batch * accumulation == 8 * tp"]
)";

const char* const kNccl = R"(knobs:
  NCCL_ALGO: {choices: [auto, Ring, Tree, NVLS, "ring;allreduce:nvls"], default: auto}
  NCCL_PROTO: {choices: [auto, LL, LL128, Simple], default: auto}
  tp: {choices: [1, 8], default: 1}
  zero: {choices: [0, 1, 3], default: 3}
nccl_rules: false
)";

std::shared_ptr<const JobPricer> pricer_of(const std::string& space, const spec::Job& job = seven_billion()) {
  return std::make_shared<JobPricer>(JobKnobs(Space::parse(space, "space.yaml"), job));
}

Config config_of(const JobPricer& pricer, const nlohmann::json& values) {
  return pricer.knobs().space().from_json(values, "config");
}

JobPrice price_of(const JobPricer& pricer, const nlohmann::json& values) {
  return pricer.price(config_of(pricer, values)).value();
}

// What `lockstep plan --layout ... --micro ...` answers; nothing where it says that it does not fit.
std::optional<plan::Candidate> planned(const spec::Job& job, const plan::Layout& layout, const plan::BatchPlan& batch) {
  planner::SearchRequest request;
  request.model = job.model;
  request.cluster = job.cluster;
  request.profile = cost::profile_for(job.cluster);
  request.global_sequences = batch.global_sequences;
  request.sequence_length = batch.sequence_length;
  request.precisions = {layout.precision};
  request.constraints = planner::constraints_of(layout, batch.micro);
  request.constraints.largest_out_of_memory_probability = 0.5;
  try {
    return planner::explain(request, {.what_ifs = false}).plan.best;
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kAnswerIsNo) << error.what();
    return std::nullopt;
  }
}

TEST(JobPricer, agrees_with_the_plan_to_the_digit) {
  const auto pricer = pricer_of(kLayouts);
  const auto configs = pricer->knobs().space().enumerate().value();
  int fitting = 0, too_large = 0;
  for (std::size_t i = 0; i < configs.size(); i += 7) {
    const JobPrice price = pricer->price(configs[i]).value();
    const auto candidate = planned(seven_billion(), price.layout, price.batch);
    SCOPED_TRACE(pricer->knobs().space().to_text(configs[i]));
    ASSERT_EQ(candidate.has_value(), price.outcome == Outcome::kMeasured) << price.problem;
    if (!candidate) {
      EXPECT_EQ(price.outcome, Outcome::kOutOfMemory);
      ++too_large;
      continue;
    }
    EXPECT_EQ(price.step_seconds, candidate->prediction->step_seconds.expected);
    EXPECT_EQ(price.per_second, candidate->prediction->tokens_per_second.expected);
    EXPECT_EQ(price.memory_bytes, candidate->memory.total());
    EXPECT_EQ(price.out_of_memory_probability, candidate->out_of_memory_probability.value());
    ++fitting;
  }
  EXPECT_GT(fitting, 5);
  EXPECT_GT(too_large, 3);
}

TEST(JobPricer, knobs_at_rest_cost_what_the_plan_says) {
  const auto plain = pricer_of("knobs: {micro_batch: {choices: [2, 4]}}");
  const auto more = pricer_of(R"(knobs:
  micro_batch: {choices: [2, 4]}
  NCCL_ALGO: {choices: [auto, Ring]}
  bucket_mib: {choices: [25, 100]}
  num_workers: {choices: [4, 8]}
  prefetch_factor: {choices: [2, 4]}
)");
  const double planned_seconds = price_of(*plain, {{"micro_batch", 2}}).step_seconds;
  const JobPrice price = price_of(
      *more,
      {{"micro_batch", 2}, {"NCCL_ALGO", "auto"}, {"bucket_mib", 25}, {"num_workers", 4}, {"prefetch_factor", 2}});
  EXPECT_EQ(price.planned_seconds, planned_seconds);
  EXPECT_NEAR(price.step_seconds, planned_seconds, 1e-4 * planned_seconds);
}

TEST(JobPricer, layouts_that_no_run_survives_are_invalid) {
  const auto pricer = pricer_of("knobs: {pp: {choices: [1, 3]}, precision: {choices: [bf16, fp8]}}");
  EXPECT_EQ(price_of(*pricer, {{"pp", 3}, {"precision", "bf16"}}).outcome, Outcome::kInvalid);
  EXPECT_EQ(price_of(*pricer, {{"pp", 1}, {"precision", "bf16"}}).outcome, Outcome::kMeasured);
  EXPECT_EQ(price_of(*pricer, {{"pp", 1}, {"precision", "fp8"}}).outcome, Outcome::kInvalid) << "as `train` says";
  spec::Job on_a100 = seven_billion();
  on_a100.cluster = spec::load_cluster("1x8xA100");
  const auto older = pricer_of("knobs: {precision: {choices: [bf16, fp8]}}", on_a100);
  EXPECT_EQ(price_of(*older, {{"precision", "fp8"}}).outcome, Outcome::kInvalid);
}

TEST(JobPricer, interleaving_runs_with_any_accumulation) {
  spec::Job job = seven_billion();
  job.layout = spec::LayoutRequest{.axes = {{"pp", 2}, {"dp", 1}, {"shard", 4}, {"virtual_stages", 2}},
                                   .choices = {{"schedule", "interleaved"}}};
  job.batch.accumulation = 3;
  const auto pricer = pricer_of("knobs: {micro_batch: {choices: [1, 2]}}", job);
  const JobPrice price = price_of(*pricer, {{"micro_batch", 1}});
  EXPECT_EQ(price.outcome, Outcome::kMeasured) << price.problem;
}

TEST(JobPricer, compression_under_a_shard_is_invalid_as_train_refuses_it) {
  const auto pricer = pricer_of("knobs: {compression: {choices: [none, powersgd]}, zero: {choices: [0, 3]}}");
  EXPECT_EQ(price_of(*pricer, {{"compression", "powersgd"}, {"zero", 3}}).outcome, Outcome::kInvalid);
  EXPECT_NE(price_of(*pricer, {{"compression", "powersgd"}, {"zero", 0}}).outcome, Outcome::kInvalid);
}

TEST(JobPricer, what_the_fused_step_alone_trains_is_refused_in_its_words) {
  spec::Job gpt = seven_billion();
  gpt.model = spec::load_model("gpt2-124m");
  gpt.batch.sequence_length = 1024;
  gpt.cluster = spec::load_cluster("1x1xH100");
  gpt.layout.reset();
  const auto one = pricer_of("knobs: {precision: {choices: [bf16, fp8]}}", gpt);
  EXPECT_NE(
      price_of(*one, {{"precision", "fp8"}}).problem.find("precision fp8 is trained by the fused CUDA step alone"),
      std::string::npos);
  spec::Job narrow = seven_billion();
  narrow.optimizer.state_precision = spec::Precision::kBf16;
  const auto several = pricer_of("knobs: {micro_batch: {choices: [1, 2]}}", narrow);
  EXPECT_NE(price_of(*several, {{"micro_batch", 1}}).problem.find("optimizer.state_precision bf16"), std::string::npos);
}

TEST(JobPricer, adapters_alone_have_gradients_and_optimizer_state) {
  spec::Job job = seven_billion();
  job.cluster = spec::load_cluster("1x1xH100");
  job.layout.reset();
  job.batch.micro = 1;
  const std::string space = "knobs: {recompute: {choices: [none, full]}}";
  const auto whole = price_of(*pricer_of(space, job), {{"recompute", "full"}});
  EXPECT_EQ(whole.outcome, Outcome::kOutOfMemory) << "18 bytes x 6.7 billion";
  job.lora.rank = 8;
  job.lora.targets = {"q_proj", "v_proj"};
  const auto adapters = price_of(*pricer_of(space, job), {{"recompute", "full"}});
  EXPECT_EQ(adapters.outcome, Outcome::kMeasured) << adapters.problem;
  EXPECT_NEAR((whole.memory_bytes - adapters.memory_bytes) / 6.738e9, 16, 3) << "as far as the stack's factors go";
  EXPECT_LT(adapters.step_seconds, whole.step_seconds);
}

TEST(JobPricer, nccl_protocols_and_algorithms_order_as_nccl_knows_them) {
  const auto pricer = pricer_of(kNccl);
  const auto seconds = [&](const char* algo, const char* proto, int tp, int zero) {
    return price_of(*pricer, {{"NCCL_ALGO", algo}, {"NCCL_PROTO", proto}, {"tp", tp}, {"zero", zero}}).step_seconds;
  };
  // Gigabytes of weights are gathered: LL loses most of the link, LL128 a little, Simple nothing.
  EXPECT_GT(seconds("Ring", "LL", 1, 3), 1.2 * seconds("Ring", "Simple", 1, 3));
  EXPECT_GT(seconds("Ring", "LL128", 1, 3), seconds("Ring", "Simple", 1, 3));
  EXPECT_LT(seconds("Ring", "LL128", 1, 3), seconds("Ring", "LL", 1, 3));
  // Tensor parallel all-reduces inside a node: the switch adds up fastest, a tree has no use there.
  EXPECT_LT(seconds("NVLS", "Simple", 8, 0), seconds("Ring", "Simple", 8, 0));
  EXPECT_GT(seconds("Tree", "Simple", 8, 0), seconds("Ring", "Simple", 8, 0));
  EXPECT_NEAR(seconds("ring;allreduce:nvls", "Simple", 8, 0), seconds("NVLS", "Simple", 8, 0), 1e-3);
  // Nothing that is set beats what NCCL would choose, as far as this model knows.
  for (const char* algo : {"auto", "Ring", "Tree", "NVLS"})
    for (const int tp : {1, 8})
      EXPECT_GE(seconds(algo, "Simple", tp, tp == 1 ? 3 : 0) * 1.03, seconds("auto", "auto", tp, tp == 1 ? 3 : 0));
}

TEST(JobPricer, pairs_that_nccl_refuses_are_invalid) {
  const auto pricer = pricer_of(kNccl);
  const auto outcome = [](const JobPricer& p, const char* algo, const char* proto) {
    return price_of(p, {{"NCCL_ALGO", algo}, {"NCCL_PROTO", proto}, {"tp", 1}, {"zero", 3}}).outcome;
  };
  EXPECT_EQ(outcome(*pricer, "NVLS", "LL"), Outcome::kInvalid);
  EXPECT_EQ(outcome(*pricer, "NVLS", "Simple"), Outcome::kMeasured);
  spec::Job on_a100 = seven_billion();
  on_a100.cluster = spec::load_cluster("1x8xA100");
  EXPECT_EQ(outcome(*pricer_of(kNccl, on_a100), "NVLS", "Simple"), Outcome::kInvalid);
}

TEST(JobPricer, a_loader_in_the_training_thread_costs_time_and_workers_win_it_back) {
  const auto pricer = pricer_of(R"(knobs:
  num_workers: {choices: [0, 1, 4, 64]}
  prefetch_factor: {choices: [1, 4], when: num_workers > 0}
)");
  const auto seconds = [&](int workers) {
    nlohmann::json config{{"num_workers", workers}};
    if (workers > 0) config["prefetch_factor"] = 4;
    return price_of(*pricer, config).step_seconds;
  };
  EXPECT_GT(seconds(0), 1.02 * seconds(4));
  EXPECT_LE(seconds(4), seconds(1));
  EXPECT_GT(seconds(64), seconds(4));  // more threads than cores
}

TEST(JobPricer, small_buckets_pay_latency_and_large_ones_overlap_nothing) {
  spec::Job job = seven_billion();
  job.model = spec::load_model("gpt2-355m");
  job.layout.reset();
  job.batch = {.micro = 16, .accumulation = 1, .sequence_length = 1024};
  job.cluster = spec::load_cluster("4x8xH100");
  const auto pricer = pricer_of("knobs: {bucket_mib: {choices: [0.05, 25, 2000]}}", job);
  const auto seconds = [&](double mib) { return price_of(*pricer, {{"bucket_mib", mib}}).step_seconds; };
  EXPECT_GT(seconds(0.05), seconds(25));
  EXPECT_GT(seconds(2000), seconds(25));
}

Measurement measure(Evaluator& evaluator, const Config& config, std::int64_t trial, double budget = 120) {
  EvaluationRequest request;
  request.trial = trial;
  request.config = config;
  request.budget_seconds = budget;
  return evaluator.evaluate(request);
}

TEST(Simulate, noise_belongs_to_the_trial_and_has_the_spread_it_says) {
  const auto pricer = pricer_of(kLayouts);
  const auto evaluator = make_simulate_evaluator(pricer, {.seed = 5});
  const Config config = pricer->knobs().space().default_config();
  EXPECT_EQ(measure(*evaluator, config, 3).samples, measure(*evaluator, config, 3).samples);
  EXPECT_NE(measure(*evaluator, config, 3).samples, measure(*evaluator, config, 4).samples);
  EXPECT_NE(measure(*evaluator, config, 3).samples,
            measure(*make_simulate_evaluator(pricer, {.seed = 6}), config, 3).samples);
  double sum = 0, squares = 0;
  const int n = 400;
  for (int trial = 0; trial < n; ++trial) {
    const double log = std::log(summarize_launch(measure(*evaluator, config, trial).samples).mean);
    sum += log;
    squares += log * log;
  }
  const double mean = sum / n;
  EXPECT_NEAR(std::sqrt(squares / n - mean * mean), 0.015, 0.002);
  EXPECT_NEAR(std::exp(mean), pricer->price(config)->per_second, 0.004 * std::exp(mean));
}

TEST(Simulate, seconds_are_those_of_a_launch_and_its_steps_within_the_budget) {
  const auto pricer = pricer_of(kLayouts);
  const auto evaluator = make_simulate_evaluator(pricer, {.steps = 10});
  const Config config = pricer->knobs().space().default_config();
  const double step = pricer->price(config)->step_seconds;
  const Measurement whole = measure(*evaluator, config, 0);
  EXPECT_EQ(whole.samples.size(), 10u);
  EXPECT_GT(whole.seconds, 15 + 10 * step);
  EXPECT_LT(whole.seconds, 15 + 14 * step);
  EXPECT_LT(whole.samples[0], 0.5 * whole.samples[9]);  // warm-up
  const Measurement cut = measure(*evaluator, config, 0, 15 + 7 * step);
  EXPECT_LT(cut.samples.size(), 5u);
  EXPECT_LE(cut.seconds, 15 + 7 * step);
  EXPECT_EQ(measure(*evaluator, config, 0, 5).outcome, Outcome::kTimeout);
  EXPECT_EQ(evaluator->devices(config), 8);
}

TEST(Simulate, racing_ends_it_and_a_failure_costs_its_launch) {
  const auto pricer = pricer_of(kLayouts);
  const auto evaluator = make_simulate_evaluator(pricer);
  EvaluationRequest request;
  request.config = pricer->knobs().space().default_config();
  request.budget_seconds = 120;
  request.keep_going = [](std::span<const double> samples) { return samples.size() < 6; };
  const Measurement stopped = evaluator->evaluate(request);
  EXPECT_TRUE(stopped.stopped_early);
  EXPECT_EQ(stopped.samples.size(), 6u);
  const Config large =
      config_of(*pricer, {{"micro_batch", 8}, {"accumulation", 1}, {"zero", 0}, {"tp", 1}, {"recompute", "none"}});
  const Measurement failed = measure(*evaluator, large, 1);
  EXPECT_EQ(failed.outcome, Outcome::kOutOfMemory);
  EXPECT_TRUE(failed.samples.empty());
  EXPECT_GT(failed.seconds, 15);
  EXPECT_TRUE(lockstep::testing::has(failed.message, "GiB"));
}

spec::Job job_on_an_unmeasured_cpu() {
  spec::Job job = seven_billion();
  job.cluster = spec::load_cluster("1x2xcpu");
  job.layout.reset();
  job.model = spec::load_model("gpt2-124m");
  job.batch.sequence_length = 64;
  job.precision = spec::Precision::kFp32;
  return job;
}

TEST(Simulate, a_cpu_without_a_profile_says_what_to_do) {
  const auto pricer = pricer_of("knobs: {micro_batch: {choices: [1, 2]}}", job_on_an_unmeasured_cpu());
  const auto evaluator = make_simulate_evaluator(pricer);
  user_error([&] { measure(*evaluator, pricer->knobs().space().default_config(), 0); }, ExitCode::kEnvironment);
}

TEST(PlannerPrior, believes_what_the_planner_predicts) {
  const auto pricer = pricer_of(kLayouts);
  const auto prior = make_planner_prior(pricer);
  const auto configs = pricer->knobs().space().enumerate().value();
  int doubtful = 0;
  for (const Config& config : configs) {
    const JobPrice price = pricer->price(config).value();
    const Belief belief = (*prior)(config).value();
    if (price.outcome == Outcome::kInvalid) {
      EXPECT_EQ(belief.fits_probability, 0);
      continue;
    }
    EXPECT_EQ(belief.log_throughput, std::log(price.per_second));
    EXPECT_EQ(belief.fits_probability, 1 - price.out_of_memory_probability);
    if (price.outcome == Outcome::kOutOfMemory) {
      EXPECT_LE(belief.fits_probability, 0.5);
    }
    doubtful += belief.fits_probability > 0.05 && belief.fits_probability < 0.95;
  }
  EXPECT_GT(doubtful, 0);  // the cliff has a slope
}

TEST(PlannerPrior, knows_nothing_about_a_cpu_that_was_not_calibrated) {
  const auto pricer = pricer_of("knobs: {micro_batch: {choices: [1, 2]}}", job_on_an_unmeasured_cpu());
  EXPECT_EQ((*make_planner_prior(pricer))(pricer->knobs().space().default_config()), std::nullopt);
}

TEST(PlannerPriorTiming, answers_fast_enough_to_be_asked_for_thousands_of_candidates) {
  const auto pricer = pricer_of(kLayouts);
  const auto prior = make_planner_prior(pricer);
  const auto configs = pricer->knobs().space().enumerate().value();
  const Stopwatch first;
  for (const Config& config : configs) (*prior)(config);
  const double uncached = first.seconds() / static_cast<double>(configs.size());
  const Stopwatch again;
  for (int i = 0; i < 20; ++i)
    for (const Config& config : configs) (*prior)(config);
  const double cached = again.seconds() / static_cast<double>(20 * configs.size());
  RecordProperty("uncached_us", std::to_string(1e6 * uncached));
  std::printf("prior: %.1f us uncached, %.2f us cached\n", 1e6 * uncached, 1e6 * cached);
  EXPECT_LT(uncached, 5e-3);
  EXPECT_LT(cached, 1e-4);
}

}  // namespace
}  // namespace lockstep::tune
