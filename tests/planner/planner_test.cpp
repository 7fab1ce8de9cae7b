#include "lockstep/planner/planner.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/plan/verdict.h"
#include "lockstep/planner/candidate.h"
#include "lockstep/planner/explain/explain.h"
#include "lockstep/planner/money.h"
#include "lockstep/planner/question.h"

namespace lockstep::planner {
namespace {

spec::Job job_of(const std::string& model, const std::string& cluster) {
  spec::Job job;
  job.model = spec::load_model(model);
  job.cluster = spec::load_cluster(cluster);
  job.batch = {.micro = 2, .accumulation = 3, .sequence_length = 128};
  job.steps = 100;
  return job;
}

cost::Profile simple_profile() {
  cost::Profile profile;
  profile.provenance.ranks = 8;
  profile.matmuls = {{cost::MatmulKind::kForward, spec::Precision::kFp32, 64, 64, 64, 1e12, 0.01}};
  profile.memory_bytes_per_second = 1e12;
  profile.optimizer_bytes_per_second = 1e12;
  profile.peak_flops = 2e12;
  profile.collectives = {{cost::CollectiveOp::kAllReduce, 8, 1 << 20, 1e-3, 0.01}};
  return profile;
}

std::string reasons_of(const plan::Plan& plan) {
  std::string text;
  for (const std::string& reason : plan.best.reasons) text += reason + "\n";
  return text;
}

TEST(Planner, uses_every_rank_for_data_and_fills_the_batch) {
  const plan::Plan plan = make_plan(job_of("gpt2-124m", "1x8xH100"));
  EXPECT_EQ(plan.best.layout.world(), 8);
  EXPECT_EQ(plan.best.batch.global_sequences, 2 * 3 * 8);
  EXPECT_EQ(plan.best.batch.micro * plan.best.batch.accumulation * plan.best.layout.data_ranks(), 2 * 3 * 8);
  EXPECT_GT(plan.best.memory.capacity, 70e9);
  EXPECT_TRUE(plan.best.prediction.has_value());
  EXPECT_EQ(plan::read_plan(plan::to_json(plan), "p").best, plan.best);
}

TEST(Planner, searches_for_a_layout_where_plain_data_parallel_does_not_fit) {
  const plan::Plan plan = make_plan(job_of("llama2-13b", "2x8xH100"));
  EXPECT_EQ(plan.best.layout.world(), 16);
  EXPECT_NE(plan.best.layout.dp, 16);
  EXPECT_EQ(plan.best.batch.micro * plan.best.batch.accumulation * plan.best.layout.data_ranks(), 2 * 3 * 16);
  EXPECT_LE(plan.best.memory.total(), plan.best.memory.capacity);
  EXPECT_EQ(plan.best.layout.precision, spec::Precision::kFp32) << "the job's";
}

TEST(Planner, a_given_layout_on_cpus_without_a_profile_has_no_time_and_says_how_to_get_one) {
  spec::Job job = job_of("gpt2-124m", "1x8xcpu");
  job.layout = spec::LayoutRequest{.axes = {{"dp", 8}}};
  const plan::Plan plan = make_plan(job);
  EXPECT_FALSE(plan.best.prediction.has_value());
  EXPECT_NE(reasons_of(plan).find("lockstep calibrate"), std::string::npos);
}

spec::Job large_job_on_cpus(double gib_per_rank) {
  spec::Job job = job_of("gpt2-774m", "1x4xcpu");
  job.cluster.groups.front().device.memory_bytes = gib_per_rank * (1 << 30);
  job.batch = {.micro = 1, .accumulation = 1, .sequence_length = 64};
  return job;
}

TEST(Planner, on_cpus_chooses_a_sharded_layout_where_replicas_do_not_fit) {
  const plan::Plan plan = make_plan(large_job_on_cpus(6));
  EXPECT_EQ(plan.best.layout.shard, 4);
  EXPECT_EQ(plan.best.layout.data_ranks(), 4);
  EXPECT_LE(plan.best.memory.total(), plan.best.memory.capacity);
  EXPECT_NE(reasons_of(plan).find("does not fit"), std::string::npos) << reasons_of(plan);
  // Not more sharding than it needs.
  EXPECT_EQ(make_plan(large_job_on_cpus(9)).best.layout.zero, 1);
  EXPECT_EQ(make_plan(large_job_on_cpus(16)).best.layout.zero, 0);
}

TEST(Planner, names_the_layout_that_fits_where_the_given_one_does_not) {
  spec::Job job = large_job_on_cpus(6);
  job.layout = spec::LayoutRequest{.axes = {{"dp", 4}}};
  try {
    make_plan(job);
    FAIL() << "dp=4 needs 12 GiB";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kAnswerIsNo);
    EXPECT_NE(error.fix().find("use layout shard=4"), std::string::npos) << error.what();
  }
}

TEST(Planner, says_that_nothing_fits_where_nothing_does) {
  try {
    make_plan(large_job_on_cpus(1));
    FAIL() << "774 M parameters in 1 GiB";
  } catch (const UserError& error) {
    EXPECT_NE(error.fix().find("neither ZeRO-3 nor recomputation"), std::string::npos) << error.what();
  }
}

TEST(Planner, counts_less_memory_where_gradients_are_reduced_in_every_micro_step) {
  spec::Job job = large_job_on_cpus(64);
  job.batch.accumulation = 4;
  job.layout = spec::LayoutRequest{.axes = {{"shard", 4}, {"zero", 3}}};
  const double kept = make_plan(job).best.memory.total();
  job.communication.reduce_each_micro_step = true;
  EXPECT_LT(make_plan(job).best.memory.total(), kept - 1e9);
}

TEST(Planner, a_given_layout_on_gpus_is_priced_as_others_of_their_kind) {
  for (const char* layout : {"dp", "tp"}) {
    spec::Job job = job_of("llama2-7b", "1x8xH100");
    job.precision = spec::Precision::kBf16;
    job.layout = spec::LayoutRequest{.axes = {{layout, 8}}};
    if (std::string(layout) == "dp") job.model.layers = 4;  // so that a replica fits
    const plan::Plan plan = make_plan(job);
    ASSERT_TRUE(plan.best.prediction && plan.best.breakdown && plan.best.cost);
    EXPECT_GT(plan.best.prediction->tokens_per_second.expected, 0);
    EXPECT_DOUBLE_EQ(plan.best.breakdown->total(), plan.best.prediction->step_seconds.expected);
    EXPECT_EQ(plan.profile, cost::profile_for("H100").identity());
    EXPECT_NE(reasons_of(plan).find("the general formulas"), std::string::npos) << reasons_of(plan);
  }
}

// 1.36 billion parameters on one H200: near 65,000 tokens a second and 44 GiB, whatever the constants are refined to.
TEST(Planner, one_gpu_is_priced_by_the_fused_step_where_it_runs_the_model) {
  spec::Job job = job_of("tinyllama-1.1b", "1x1xH200");
  job.model.layers = 24;
  job.model.heads = job.model.kv_heads = 16;
  job.model.head_dim = 128;
  job.precision = spec::Precision::kBf16;
  job.batch = {.micro = 8, .accumulation = 1, .sequence_length = 2048};
  job.layout = spec::LayoutRequest{.axes = {{"dp", 1}}};
  const plan::Plan plan = make_plan(job);
  ASSERT_TRUE(plan.best.prediction.has_value());
  EXPECT_NEAR(plan.best.prediction->tokens_per_second.expected, 65e3, 5e3);
  EXPECT_NEAR((plan.best.memory.total() - plan.best.memory.overhead) / (1 << 30), 44.3, 0.5);
  EXPECT_NE(reasons_of(plan).find("fused step of one GPU"), std::string::npos) << reasons_of(plan);
  const double states = plan.best.memory.optimizer;
  job.optimizer.state_precision = spec::Precision::kBf16;
  EXPECT_NEAR(make_plan(job).best.memory.optimizer, states / 2, 1);
  job.optimizer.state_precision = spec::Precision::kFp32;
  job.lora.rank = 8;  // adapters go through the general path
  EXPECT_NE(reasons_of(make_plan(job)).find("the general formulas"), std::string::npos);
}

// No profile was measured with the fused step there; `lockstep train` runs it all the same.
TEST(Planner, narrow_states_count_on_a_gpu_without_a_profile_of_the_fused_step) {
  spec::Job job = job_of("tinyllama-1.1b", "1x1xH100");
  job.precision = spec::Precision::kBf16;
  for (const bool given : {true, false}) {  // counted, and searched
    job.layout.reset();
    if (given) job.layout = spec::LayoutRequest{.axes = {{"dp", 1}}};
    job.optimizer.state_precision = spec::Precision::kFp32;
    const plan::Candidate wide = make_plan(job).best;
    job.optimizer.state_precision = spec::Precision::kBf16;
    const plan::Candidate narrow = make_plan(job).best;
    EXPECT_NEAR(narrow.memory.optimizer / wide.memory.optimizer, 8.0 / 12, 1e-9) << "4 + 2 + 2 of 4 + 4 + 4 bytes";
    EXPECT_LT(narrow.breakdown->optimizer, wide.breakdown->optimizer);
  }
}

// 6.7 billion parameters and AdamW do not fit one H100; 2 bytes each and an adapter of 4.2 million do.
TEST(Planner, a_job_of_adapters_holds_the_state_of_adapters) {
  spec::Job job = job_of("llama2-7b", "1x1xH100");
  job.precision = spec::Precision::kBf16;
  job.batch = {.micro = 1, .accumulation = 1, .sequence_length = 2048};
  job.layout = spec::LayoutRequest{.axes = {{"dp", 1}}};
  EXPECT_THROW(make_plan(job), UserError);
  job.lora.rank = 8;
  job.lora.targets = {"q_proj", "v_proj"};
  const plan::Plan plan = make_plan(job);
  EXPECT_NEAR(plan.best.memory.optimizer, 12 * 4194304.0, 0.05 * 12 * 4194304.0) << "with what the profile adds";
  EXPECT_LT(plan.best.memory.gradients, 1e8);
  const cost::Profile tables = simple_profile();
  job = job_of("gpt2-124m", "1x8xH100");
  const plan::Candidate whole = make_plan(job, &tables).best;
  job.lora.rank = 8;
  job.lora.targets = {"q_proj"};
  const plan::Candidate adapters = make_plan(job, &tables).best;
  EXPECT_EQ(adapters.memory.parameters, whole.memory.parameters);
  EXPECT_LT(adapters.memory.optimizer, 0.01 * whole.memory.optimizer);
  EXPECT_LT(adapters.breakdown->optimizer, 0.01 * whole.breakdown->optimizer);
}

TEST(Planner, prices_with_a_profile_and_counts_the_hours_of_the_whole_job) {
  const cost::Profile profile = simple_profile();
  const plan::Plan plan = make_plan(job_of("gpt2-124m", "1x8xH100"), &profile);
  ASSERT_TRUE(plan.best.prediction && plan.best.breakdown && plan.best.cost);
  const double step = plan.best.prediction->step_seconds.expected;
  EXPECT_GT(step, 0);
  EXPECT_DOUBLE_EQ(plan.best.breakdown->total(), step);
  EXPECT_DOUBLE_EQ(plan.best.prediction->tokens_per_second.expected, 48 * 128 / step);
  ASSERT_TRUE(plan.best.checkpoint.has_value());
  const double seconds = 100 * step / plan.best.checkpoint->goodput;
  EXPECT_NEAR(plan.best.cost->gpu_hours, seconds / 3600 * 8, 1e-9 * seconds);
  EXPECT_NEAR(plan.best.cost->days, seconds / 86400, 1e-12 * seconds);
  EXPECT_EQ(plan.profile, profile.identity());
}

TEST(Planner, says_when_the_profile_is_of_another_number_of_ranks) {
  cost::Profile profile = simple_profile();
  EXPECT_EQ(reasons_of(make_plan(job_of("gpt2-124m", "1x8xH100"), &profile)).find("measured on"), std::string::npos);
  profile.provenance.ranks = 2;
  EXPECT_NE(reasons_of(make_plan(job_of("gpt2-124m", "1x8xH100"), &profile)).find("measured on 2 ranks"),
            std::string::npos);
}

TEST(Planner, what_does_not_fit_is_a_no_that_names_the_term_and_the_excess) {
  try {
    spec::Job job = job_of("llama2-13b", "1x8xH100");
    job.layout = spec::LayoutRequest{.axes = {{"dp", 8}}};
    make_plan(job);
    FAIL() << "13 billion parameters x 16 bytes in 80 GB";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kAnswerIsNo);
    EXPECT_NE(std::string(error.what()).find("optimizer state"), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find("too much"), std::string::npos) << error.what();
  }
  spec::Job job = job_of("gpt2-124m", "1x8xH100");
  job.layout = spec::LayoutRequest{.axes = {{"dp", 8}}};
  job.batch.micro = 4096;
  try {
    make_plan(job);
    FAIL() << "4096 sequences at once";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("activations"), std::string::npos) << error.what();
    EXPECT_NE(error.fix().find("batch.micro"), std::string::npos) << error.what();
  }
}

TEST(Planner, a_layout_of_the_job_is_taken_or_refused_as_it_is) {
  spec::Job job = job_of("gpt2-124m", "1x8xH100");
  job.layout = spec::LayoutRequest{.axes = {{"dp", 8}}};
  EXPECT_NE(reasons_of(make_plan(job)).find("given by the job"), std::string::npos);
  job.layout = spec::LayoutRequest{.axes = {{"dp", 4}}};
  try {
    make_plan(job);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_STREQ(error.what(), "layout: dp=4 has 4 ranks, the run has 8; nearest that works: dp=8");
  }
  job.layout = spec::LayoutRequest{.axes = {{"tp", 8}}};
  EXPECT_THROW(make_plan(job), UserError);  // 12 heads
}

// --- One number for `plan` and `train`
spec::Job llama_job(const std::string& layout) {
  spec::Job job = job_of("llama2-7b", "2x8xH100");
  job.precision = spec::Precision::kBf16;
  job.layout = plan::request_from_layout(plan::parse_layout(layout));
  return job;
}

TEST(Planner, a_layout_costs_the_same_whether_it_was_given_or_searched_for) {
  for (const char* layout : {"dp=2,shard=8", "dp=2,tp=8", "pp=2,tp=8", "pp=2,shard=8,recompute=full", "cp=2,shard=8"}) {
    const spec::Job job = llama_job(layout);
    const plan::Candidate given = make_plan(job).best;
    const plan::Candidate asked =
        explain(question_of(job, cost::engine_profile_for(job.cluster)), {.what_ifs = false}).plan.best;
    EXPECT_EQ(given.layout, asked.layout);
    EXPECT_EQ(given.batch, asked.batch);
    EXPECT_EQ(given.memory, asked.memory) << layout;
    EXPECT_EQ(given.prediction, asked.prediction) << layout;
    EXPECT_EQ(given.cost, asked.cost) << layout;
    ASSERT_TRUE(given.cost);
    EXPECT_GT(given.cost->usd, 0);
  }
}

TEST(Planner, tables_of_this_machine_price_a_layout_alike_for_plan_and_train) {
  const cost::Profile tables = simple_profile();
  for (const char* layout : {"dp=8", "dp=2,tp=4", "shard=8", "pp=2,dp=4"}) {
    spec::Job job = job_of("gpt2-124m", "1x8xcpu");
    job.layout = plan::request_from_layout(plan::parse_layout(layout));
    const plan::Candidate given = make_plan(job, &tables).best;
    const plan::Candidate asked = explain(question_of(job, tables), {.what_ifs = false}).plan.best;
    EXPECT_EQ(given.batch, asked.batch);
    EXPECT_EQ(given.memory, asked.memory) << layout;
    EXPECT_EQ(given.prediction, asked.prediction) << layout;
  }
}

TEST(Planner, snapshots_have_a_line_of_their_own_and_are_refused_where_they_do_not_fit) {
  spec::Job job = job_of("gpt2-124m", "1x8xcpu");
  job.layout = plan::request_from_layout(plan::parse_layout("shard=8"));
  job.cluster.groups.front().device.memory_bytes = 64e9;
  const plan::Plan plan = make_plan(job);
  const double step = plan.best.memory.total();
  // 124,439,808 parameters x 12 bytes over 8 ranks, own and a peer's, twice.
  EXPECT_NEAR(plan.best.memory.snapshots, 4 * 124439808.0 * 12 / 8, 1e6);
  EXPECT_NE(reasons_of(plan).find("snapshots"), std::string::npos);
  EXPECT_EQ(plan::read_plan(plan::to_json(plan), "p").best.memory, plan.best.memory);

  job.cluster.groups.front().device.memory_bytes = step + 100e6;
  EXPECT_EQ(make_plan(job).best.memory.snapshots, 0);
  EXPECT_NE(reasons_of(make_plan(job)).find("none are taken"), std::string::npos);
  job.recovery.snapshots.every = 1;
  try {
    make_plan(job);
    FAIL() << "there is no room";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kAnswerIsNo);
    EXPECT_NE(std::string(error.what()).find("recovery.snapshots.every to auto or 0"), std::string::npos)
        << error.what();
  }
}

TEST(Planner, dollars_are_of_whole_nodes_and_of_the_time_that_failures_cost) {
  const plan::Candidate best = make_plan(llama_job("dp=2,shard=8")).best;
  ASSERT_TRUE(best.checkpoint && best.cost);
  EXPECT_LT(best.checkpoint->goodput, 1);
  const double tokens = 100.0 * static_cast<double>(best.batch.global_sequences * best.batch.sequence_length);
  const plan::Cost wanted = cost_of(llama_job("dp=2,shard=8").cluster, 16, tokens,
                                    best.prediction->tokens_per_second.expected, best.checkpoint->goodput);
  EXPECT_NEAR(best.cost->usd, wanted.usd, 1e-9 * wanted.usd);
}

// --- What a job asks is what it would train
TEST(Planner, a_search_for_a_job_keeps_to_what_trains) {
  spec::Job job = job_of("gpt2-355m", "1x8xH100");
  job.precision = spec::Precision::kBf16;
  job.batch.sequence_length = 1020;  // no ring over four
  job.communication.compression = spec::Compression::kPowerSgd;
  const plan::Plan plan = make_plan(job);
  EXPECT_EQ(plan.best.layout.zero, 0);
  for (const plan::Candidate& candidate : plan.alternatives) {
    EXPECT_EQ(plan::first_refusal(plan::run_of(job, candidate)), std::nullopt) << plan::to_string(candidate.layout);
  }
}

TEST(Planner, a_layout_that_train_refuses_is_refused_with_the_same_words) {
  spec::Job job = job_of("llama3-8b", "1x8xH100");
  job.precision = spec::Precision::kBf16;
  job.batch.sequence_length = 1020;
  job.layout = spec::LayoutRequest{.axes = {{"cp", 8}}};
  const auto words = [](auto ask) -> std::string {
    try {
      ask();
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  };
  const std::string said = words([&] { make_plan(job); });
  EXPECT_NE(said.find("into the 16 pieces"), std::string::npos) << said;
  EXPECT_EQ(words([&] { question_of(job, cost::engine_profile_for(job.cluster)); }), said);
  EXPECT_EQ(words([&] { plan::require_runnable(plan::run_of(job, plan::layout_of(job))); }), said);
}

TEST(Planner, the_smallest_device_of_a_mixed_cluster_is_the_one_to_fit) {
  spec::Cluster cluster = spec::load_cluster("1x8xH100");
  spec::NodeGroup small = cluster.groups[0];
  small.device.kind = "small";
  small.device.memory_bytes = 1e9;
  cluster.groups.push_back(small);
  EXPECT_EQ(smallest_device(cluster).kind, "small");
}

}  // namespace
}  // namespace lockstep::planner
