// One price of a run: what decides it, and that loops and verbs get the same figures.
#include "lockstep/cost/price.h"

#include <gtest/gtest.h>

#include "lockstep/cost/engine_memory.h"
#include "lockstep/cost/fused/memory.h"
#include "lockstep/cost/step_time.h"
#include "tests/cost/tiny_run.h"

namespace lockstep::cost {
namespace {

// Tables of a machine with 1 GFLOP/s.
Profile tables() {
  Profile profile;
  profile.matmuls = {{MatmulKind::kForward, spec::Precision::kFp32, 64, 64, 64, 1e9, 0}};
  profile.memory_bytes_per_second = 1e10;
  profile.operator_seconds = profile.backward_operator_seconds = 1e-6;
  profile.optimizer_bytes_per_second = 1e9;
  for (const std::int64_t ranks : {2, 4}) {
    profile.collectives.push_back({CollectiveOp::kAllReduce, ranks, 1024, 1e-5, 0});
    profile.collectives.push_back({CollectiveOp::kAllReduce, ranks, 1 << 24, 1e-2, 0});
  }
  profile.peak_flops = 1e9;
  profile.framework_bytes = 3e7;
  profile.provenance.cores = 2;
  return profile;
}

plan::Run on_gpus(const std::string& model, const std::string& cluster, const std::string& layout) {
  plan::Run run;
  run.model = spec::load_model(model);
  run.cluster = spec::load_cluster(cluster);
  run.layout = plan::parse_layout(layout);
  run.layout.precision = spec::Precision::kBf16;
  run.batch = {.micro = 1, .accumulation = 4, .global_sequences = 4 * run.layout.data_ranks(), .sequence_length = 2048};
  run.executor = plan::choose_executor(run);
  return run;
}

void expect_equal(const plan::MemoryBreakdown& a, const plan::MemoryBreakdown& b) {
  EXPECT_EQ(a.parameters, b.parameters);
  EXPECT_EQ(a.gradients, b.gradients);
  EXPECT_EQ(a.optimizer, b.optimizer);
  EXPECT_EQ(a.activations, b.activations);
  EXPECT_EQ(a.buffers, b.buffers);
  EXPECT_EQ(a.overhead, b.overhead);
  EXPECT_EQ(a.capacity, b.capacity);
}

TEST(PriceOfARun, is_the_pricers_for_a_fitted_stack) {
  for (const char* layout : {"dp=8", "shard=8,zero=3", "pp=2,dp=4", "tp=4,dp=2,sequence_parallel=true",
                             "pp=4,dp=2,schedule=zero_bubble,virtual_stages=2"}) {
    for (const char* profile : {"H100", "H100-nanotron-0.5"}) {
      const plan::Run run = on_gpus("tinyllama-1.1b", "1x8xH100", layout);
      const Profile stack = find_profile(profile);
      const RunPrice one = price(run, stack);
      const Pricer pricer(run.model, run.cluster, stack, {.sequence_length = 2048});
      const Price looped = pricer.price(run.layout, run.batch);
      EXPECT_EQ(one.by, PricedBy::kFormulas);
      EXPECT_EQ(one.step_seconds(), looped.step_seconds()) << layout;
      EXPECT_EQ(one.prediction.step_seconds.high, pricer.predict(looped, run.layout, run.batch).step_seconds.high);
      expect_equal(one.memory, looped.memory);
      expect_equal(memory_of(run, &stack), one.memory);
    }
  }
}

TEST(PriceOfARun, is_the_tables_for_plain_replicas_on_a_calibrated_machine) {
  const plan::Run run = tiny_run("dp=2");
  const RunPrice one = price(run, tables());
  EXPECT_EQ(one.by, PricedBy::kTables);
  const Workload workload{run.model, run.batch};
  EXPECT_EQ(one.step_seconds(), predict_step(tables(), workload, run.layout).breakdown.total());
  EXPECT_EQ(one.memory.overhead, 3e7);
  EXPECT_EQ(priced_by(tiny_run("tp=2"), tables()), PricedBy::kFormulas);
  EXPECT_EQ(priced_by(tiny_run("dp=2,recompute=full"), tables()), PricedBy::kFormulas);
  EXPECT_EQ(priced_by(tiny_run("dp=2", spec::load_model("mamba-130m")), tables()), PricedBy::kFormulas);
}

// Whoever asks, with a profile or in a loop.
TEST(MemoryOfARun, is_one_number_on_a_calibrated_machine) {
  const Profile machine = tables();
  for (const char* layout : {"dp=1", "dp=4", "shard=4,zero=2", "shard=4,zero=3", "tp=2,dp=2", "pp=2,dp=2", "pp=4",
                             "pp=2,schedule=zero_bubble,virtual_stages=2", "pp=2,dp=2,recompute=full"}) {
    const plan::Run run = tiny_run(layout);
    const Pricer pricer(run.model, run.cluster, machine, options_of(run));
    const plan::MemoryBreakdown memory = memory_of(run, &machine);
    expect_equal(pricer.price(run.layout, run.batch).memory, memory);
    expect_equal(price(run, machine).memory, memory);
    EXPECT_LE(pricer.memory_floor(run.layout), memory.total()) << layout;
    EXPECT_EQ(memory.total() - memory.overhead, memory_of(run, nullptr).total()) << layout;
    EXPECT_EQ(memory.capacity, 1e9);
  }
}

TEST(MemoryOfARun, is_the_engines_under_its_own_profile_and_the_fits_under_another) {
  const plan::Run run = on_gpus("gpt2-124m", "1x1xH200", "dp=1");
  const Profile own = find_profile("H200-lockstep"), other = find_profile("H100");
  EXPECT_TRUE(is_of_this_engine(own));
  EXPECT_FALSE(is_of_this_engine(other));
  const plan::MemoryBreakdown counted = engine_memory(run, 0);
  const RunPrice priced = price(run, own);
  EXPECT_EQ(priced.by, PricedBy::kFormulas);
  EXPECT_EQ(priced.memory.activations, counted.activations);
  EXPECT_EQ(priced.memory.parameters, counted.parameters);
  expect_equal(memory_of(run, &own), priced.memory);
  EXPECT_NE(price(run, other).memory.activations, counted.activations);
}

TEST(MemoryOfARun, is_the_fused_steps_where_that_runs) {
  plan::Run run = on_gpus("tinyllama-1.1b", "1x1xH200", "dp=1");
  ASSERT_EQ(run.executor, plan::Executor::kFused);
  const Profile own = find_profile("H200-lockstep");
  const RunPrice priced = price(run, own);
  EXPECT_EQ(priced.by, PricedBy::kFused);
  EXPECT_TRUE(priced.fused);
  const double counted = fused_memory(fused_run(run.model, run.layout, run.batch)).total();
  EXPECT_EQ(priced.allocated_bytes(), counted);
  EXPECT_EQ(memory_of(run, nullptr).total(), counted);
  run.communication.compression = spec::Compression::kFp16;  // which that step does not do
  run.executor = plan::choose_executor(run);
  EXPECT_EQ(price(run, own).by, PricedBy::kFormulas);
  EXPECT_FALSE(price(run, own).fused);
}

TEST(MemoryOfARun, weights_kept_gathered_are_as_wide_as_they_are_stored) {
  plan::Run run = on_gpus("tinyllama-1.1b", "1x8xH100", "shard=8,zero=3");
  run.layout.precision = spec::Precision::kFp8;
  const Profile stack = find_profile("H100");
  const double before = price(run, stack).memory.buffers;
  run.communication.reshard_after_forward = false;
  EXPECT_NEAR(price(run, stack).memory.buffers - before, 2.0 * static_cast<double>(spec::parameter_count(run.model)),
              1e4);
}

TEST(PriceOfARun, follows_what_a_job_says_about_communication) {
  plan::Run run = on_gpus("tinyllama-1.1b", "2x8xH100", "dp=16");
  const Profile stack = find_profile("H100");
  const double usual = price(run, stack).time.dp_comm;
  run.communication.compression = spec::Compression::kPowerSgd;
  EXPECT_LT(price(run, stack).time.dp_comm, usual);
  run.communication = {};
  run.communication.bucket_mib = 1;
  EXPECT_GT(price(run, stack).time.dp_comm, usual);
  run.communication = {};
  run.lora = {.rank = 8, .alpha = 16, .targets = {"q_proj"}};
  EXPECT_LT(price(run, stack).time.dp_comm, usual / 10);
  EXPECT_LT(price(run, stack).memory.optimizer, 1e8);
}

}  // namespace
}  // namespace lockstep::cost
