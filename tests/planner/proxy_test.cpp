#include "lockstep/planner/proxy/proxy.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <ostream>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/cost/engine_memory.h"
#include "lockstep/cost/flops.h"
#include "lockstep/plan/run.h"
#include "lockstep/plan/verdict.h"
#include "lockstep/planner/planner.h"
#include "lockstep/planner/proxy/shrink.h"

namespace lockstep::planner {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

spec::Job job_of(const std::string& model, const std::string& cluster, const std::string& more) {
  spec::Job job = spec::parse_job(fmt::format("model: {}\ncluster: {}\ndata: {{kind: text, path: x}}\n"
                                              "steps: 100\nprecision: bf16\n{}\n",
                                              model, cluster, more),
                                  "job");
  job.name = "target";
  return job;
}

ProxyMachine processors(std::int64_t ranks, double memory_bytes = 8 * kGiB) {
  ProxyMachine machine;
  machine.node.devices_per_node = ranks;
  machine.node.device.kind = "cpu";
  machine.node.device.memory_bytes = memory_bytes;
  machine.flops_per_second = 20e9;
  return machine;
}

ProxyMachine gpus(std::int64_t count) {
  ProxyMachine machine;
  machine.node = spec::load_cluster(fmt::format("1x{}xH200", count)).groups.front();
  machine.flops_per_second = 0.4 * machine.node.device.peak_bf16_flops;
  return machine;
}

struct Case {
  std::string name, model, cluster, more;
};
void PrintTo(const Case& one, std::ostream* out) { *out << one.name; }

// The jobs that the rules were written for, with layouts that use every kind of parallelism.
std::vector<Case> cases() {
  return {
      {"13B", "llama2-13b", "4x8xH100",
       "batch: {micro: 2, accumulation: 64, sequence_length: 4096}\n"
       "layout: {pp: 2, shard: 8, zero: 1, tp: 2, sequence_parallel: true}"},
      {"70B", "llama2-70b", "32x8xH100",
       "batch: {micro: 1, accumulation: 32, sequence_length: 4096}\n"
       "layout: {pp: 4, virtual_stages: 2, shard: 8, zero: 2, tp: 8, "
       "sequence_parallel: true, recompute: selective}"},
      {"70BContext", "llama3-70b", "8x8xH100",
       "batch: {micro: 1, accumulation: 8, sequence_length: 8192}\n"
       "layout: {shard: 4, zero: 3, cp: 4, tp: 4, recompute: full}"},
      {"MoE", "mixtral-8x7b", "4x8xH100",
       "batch: {micro: 1, accumulation: 8, sequence_length: 4096}\n"
       "layout: {dp: 2, shard: 8, zero: 1, ep: 8, tp: 2}"},
      {"Mamba", "mamba-2.8b", "1x8xH100", "batch: {micro: 4, accumulation: 2}\nlayout: {shard: 4, zero: 3, tp: 2}"},
      {"GPT2", "gpt2-124m", "1x8xA100", "batch: {micro: 8, accumulation: 8}\nlayout: {dp: 8}"},
      {"ZeroBubble", "llama2-7b", "1x8xH100",
       "batch: {micro: 1, accumulation: 16, sequence_length: 2048}\n"
       "layout: {pp: 4, dp: 2, schedule: zero_bubble}"},
      {"LoRA", "llama2-7b", "1x8xH100",
       "lora: {rank: 16, alpha: 32, targets: [q_proj, v_proj]}\n"
       "batch: {micro: 2, accumulation: 4, sequence_length: 2048}\n"
       "layout: {shard: 8, zero: 3, recompute: selective}"},
      {"BERT", "bert-large", "1x8xA100", "batch: {micro: 8}\nlayout: {dp: 4, tp: 2}"},
  };
}

plan::Candidate planned(const spec::Job& job) {
  plan::Candidate candidate;
  candidate.layout = *plan::given_layout(job);
  candidate.batch = plan::batch_of(job, candidate.layout);
  return candidate;
}

class EveryJob : public testing::TestWithParam<Case> {
 protected:
  spec::Job job() const { return job_of(GetParam().model, GetParam().cluster, GetParam().more); }
};

TEST_P(EveryJob, has_proxies_that_the_engine_trains) {
  const spec::Job target = job();
  for (const std::int64_t ranks : {1, 2, 4, 8}) {
    for (const Proxy& proxy : choose_proxies(target, planned(target), processors(ranks), {}).proxies) {
      EXPECT_LE(proxy.layout.world(), ranks);
      EXPECT_EQ(proxy.job.cluster.devices(), proxy.layout.world());
      const auto problem = plan::first_refusal(plan::run_of(proxy.job, proxy.layout));
      EXPECT_FALSE(problem) << plan::to_string(proxy.layout) << ": " << problem->text;
      EXPECT_NO_THROW(make_plan(proxy.job));
      EXPECT_EQ(spec::parse_job(spec::to_yaml(proxy.job), "again").model, proxy.job.model);
    }
  }
}

TEST_P(EveryJob, has_every_kind_of_parallelism_of_its_plan_on_some_proxy) {
  const spec::Job target = job();
  const std::vector<Parallelism> kinds = kinds_of(planned(target));
  for (const std::int64_t ranks : {2, 4, 8}) {
    const ProxyChoice choice = choose_proxies(target, planned(target), processors(ranks), {});
    std::set<Parallelism> checked;
    for (const Proxy& proxy : choice.proxies) checked.insert(proxy.checks.begin(), proxy.checks.end());
    EXPECT_EQ(checked, std::set<Parallelism>(kinds.begin(), kinds.end())) << ranks << " ranks";
    EXPECT_TRUE(choice.unchecked.empty());
  }
}

TEST_P(EveryJob, a_proxy_says_it_checks_what_its_layout_has) {
  const spec::Job target = job();
  for (const Proxy& proxy : choose_proxies(target, planned(target), processors(4), {}).proxies) {
    plan::Candidate own;
    own.layout = proxy.layout;
    std::vector<Parallelism> has = kinds_of(own), says = proxy.checks;
    std::sort(has.begin(), has.end());
    std::sort(says.begin(), says.end());
    EXPECT_EQ(has, says) << plan::to_string(proxy.layout);
  }
}

TEST_P(EveryJob, keeps_the_ratios_of_its_model) {
  const spec::Job target = job();
  const spec::Model& large = target.model;
  for (const double budget : {20.0, 120.0, 2000.0}) {
    const ProxyChoice choice = choose_proxies(target, planned(target), processors(2), {.budget_seconds = budget});
    const spec::Model& small = choice.proxies.front().job.model;
    const double factor = static_cast<double>(small.hidden) / static_cast<double>(large.hidden);
    const auto ratio = [&](std::int64_t value, std::int64_t of) {
      return static_cast<double>(value) / (factor * static_cast<double>(of));
    };
    std::int64_t least = 1;
    for (const Proxy& proxy : choice.proxies) least = std::max(least, proxy.layout.pp * proxy.layout.virtual_stages);
    // The smallest depth that a pipeline divides may be too deep.
    EXPECT_GT(ratio(small.layers, large.layers), 0.75);
    if (small.layers > least) {
      EXPECT_LT(ratio(small.layers, large.layers), 1.25);
    }
    if (large.ffn_hidden > 0) {
      EXPECT_NEAR(ratio(small.ffn_hidden, large.ffn_hidden), 1, 0.05);
    }
    if (large.heads > 0) {
      EXPECT_EQ(small.heads * large.kv_heads, large.heads * small.kv_heads);
      EXPECT_GE(small.heads, std::min<std::int64_t>(4, large.heads));
    }
    EXPECT_EQ(small.experts, large.experts);
    EXPECT_EQ(small.experts_per_token, large.experts_per_token);
    EXPECT_EQ(small.expand, large.expand);
    EXPECT_EQ(small.state_size, large.state_size);
    const double sequence = static_cast<double>(choice.proxies.front().job.batch.sequence_length);
    EXPECT_NEAR(sequence, factor * static_cast<double>(planned(target).batch.sequence_length), 16);
  }
}

TEST_P(EveryJob, keeps_what_is_not_a_size) {
  const spec::Job target = job();
  const plan::Candidate best = planned(target);
  for (const Proxy& proxy : choose_proxies(target, best, processors(2), {}).proxies) {
    EXPECT_EQ(proxy.job.optimizer, target.optimizer);
    EXPECT_EQ(proxy.job.lora, target.lora);
    EXPECT_EQ(proxy.job.communication, target.communication);
    EXPECT_EQ(proxy.layout.recompute, best.layout.recompute);
    EXPECT_EQ(proxy.job.batch.micro, best.batch.micro);
    EXPECT_EQ(proxy.job.batch.accumulation,
              std::min<std::int64_t>(best.batch.accumulation,
                                     std::max<std::int64_t>(4, 2 * proxy.layout.pp * proxy.layout.virtual_stages)));
    if (proxy.layout.tp > 1) {
      EXPECT_EQ(proxy.layout.sequence_parallel, best.layout.sequence_parallel);
    }
    if (proxy.layout.pp > 1) {
      EXPECT_EQ(proxy.layout.schedule, best.layout.schedule);
    }
    if (proxy.layout.shard > 1) {
      EXPECT_EQ(proxy.layout.zero, best.layout.zero);
    }
    EXPECT_EQ(proxy.job.precision, spec::Precision::kFp32);
  }
}

TEST_P(EveryJob, stays_within_parameters_time_and_memory) {
  const spec::Job target = job();
  const ProxyLimits limits{.budget_seconds = 600};
  const ProxyMachine machine = processors(2, 1 * kGiB);
  const ProxyChoice choice = choose_proxies(target, planned(target), machine, limits);
  EXPECT_FALSE(choice.over_budget);
  EXPECT_LE(choice.assumed_seconds, limits.budget_seconds);
  for (const Proxy& proxy : choice.proxies) {
    EXPECT_LE(10 * spec::parameter_count(proxy.job.model), spec::parameter_count(target.model));
    const plan::MemoryBreakdown memory = cost::engine_memory(plan::run_of(proxy.job, proxy.layout));
    EXPECT_LE(memory.total(), 0.7 * machine.node.device.memory_bytes);
  }
}

TEST_P(EveryJob, gets_larger_proxies_with_more_time) {
  const spec::Job target = job();
  std::int64_t before = 0;
  for (const double budget : {10.0, 100.0, 1000.0, 10000.0}) {
    const ProxyChoice choice = choose_proxies(target, planned(target), processors(2), {.budget_seconds = budget});
    const std::int64_t now = spec::parameter_count(choice.proxies.front().job.model);
    EXPECT_GE(now, before) << budget;
    before = now;
  }
}

TEST_P(EveryJob, trains_in_its_own_precision_on_a_gpu) {
  const spec::Job target = job();
  const ProxyChoice choice = choose_proxies(target, planned(target), gpus(1), {});
  ASSERT_EQ(choice.proxies.size(), 1u);
  EXPECT_EQ(choice.proxies.front().job.precision, spec::Precision::kBf16);
  EXPECT_EQ(choice.proxies.front().job.cluster.name, "1x1xH200");
  EXPECT_EQ(choice.unchecked.size(), kinds_of(planned(target)).size());
}

INSTANTIATE_TEST_SUITE_P(Proxies, EveryJob, testing::ValuesIn(cases()), [](const auto& one) { return one.param.name; });

spec::Job thirteen_billion() { return job_of(cases()[0].model, cases()[0].cluster, cases()[0].more); }

std::vector<std::string> layouts_of(const ProxyChoice& choice) {
  std::vector<std::string> texts;
  for (const Proxy& proxy : choice.proxies) texts.push_back(plan::to_string(proxy.layout));
  return texts;
}

TEST(ProxiesOf13B, on_two_ranks_check_one_kind_each) {
  const spec::Job job = thirteen_billion();
  EXPECT_EQ(layouts_of(choose_proxies(job, planned(job), processors(2), {})),
            (std::vector<std::string>{"tp=2,sequence_parallel=true", "pp=2", "shard=2,zero=1"}));
}

TEST(ProxiesOf13B, on_eight_ranks_are_one_that_has_everything) {
  const spec::Job job = thirteen_billion();
  EXPECT_EQ(layouts_of(choose_proxies(job, planned(job), processors(8), {})),
            (std::vector<std::string>{"pp=2,shard=2,zero=1,tp=2,sequence_parallel=true"}));
}

TEST(ProxiesOf13B, what_costs_most_comes_first) {
  const spec::Job job = thirteen_billion();
  plan::Candidate best = planned(job);
  best.breakdown = plan::TimeBreakdown{.compute = 10, .tp_comm = 1, .dp_comm = 3, .pp_comm = 0.5, .bubble = 1};
  EXPECT_EQ(layouts_of(choose_proxies(job, best, processors(2), {.proxies = 2})),
            (std::vector<std::string>{"shard=2,zero=1", "pp=2"}));
}

TEST(ProxiesOf13B, a_limit_of_their_number_leaves_kinds_unchecked_and_says_so) {
  const spec::Job job = thirteen_billion();
  const ProxyChoice choice = choose_proxies(job, planned(job), processors(2), {.proxies = 1});
  ASSERT_EQ(choice.unchecked.size(), 2u);
  EXPECT_EQ(choice.unchecked[0].what, "pp");
  EXPECT_NE(choice.unchecked[0].why.find("--proxies 1"), std::string::npos);
}

TEST(ProxiesOf13B, one_rank_checks_no_parallelism_and_says_so) {
  const spec::Job job = thirteen_billion();
  const ProxyChoice choice = choose_proxies(job, planned(job), processors(1), {});
  ASSERT_EQ(choice.proxies.size(), 1u);
  EXPECT_TRUE(choice.proxies.front().checks.empty());
  EXPECT_EQ(choice.unchecked.size(), 3u);
}

TEST(ProxiesOf13B, say_how_they_differ) {
  const spec::Job job = thirteen_billion();
  const Proxy proxy = choose_proxies(job, planned(job), processors(2), {}).proxies.front();
  const auto row = [&](const std::string& what) {
    const auto found = std::find_if(proxy.differences.begin(), proxy.differences.end(),
                                    [&](const Difference& difference) { return difference.what == what; });
    return found == proxy.differences.end() ? Difference{} : *found;
  };
  EXPECT_EQ(row("hidden").target, "5120");
  EXPECT_EQ(row("hidden").proxy, std::to_string(proxy.job.model.hidden));
  EXPECT_EQ(row("precision").proxy, "fp32");
  EXPECT_EQ(row("accumulation").target, "64");
  EXPECT_EQ(row("micro-batch"), Difference{}) << "it is the same";
}

TEST(ProxiesOf13B, keep_the_share_of_the_head_while_the_vocabulary_is_above_256) {
  const spec::Job job = thirteen_billion();
  const ProxyChoice choice = choose_proxies(job, planned(job), gpus(1), {.budget_seconds = 1e6});
  const spec::Model& small = choice.proxies.front().job.model;
  const auto share = [](const spec::Model& model, std::int64_t sequence) {
    return 6.0 * static_cast<double>(model.vocab * model.hidden) / cost::mfu_flops_per_token(model, sequence);
  };
  ASSERT_GT(small.vocab, 256);
  EXPECT_NEAR(share(small, choice.proxies.front().job.batch.sequence_length), share(job.model, 4096), 0.001);
}

TEST(ProxiesOf13B, where_the_smallest_takes_longer_than_asked_for_it_is_taken_and_said) {
  const spec::Job job = thirteen_billion();
  const ProxyChoice choice = choose_proxies(job, planned(job), processors(2), {.budget_seconds = 1e-3});
  EXPECT_TRUE(choice.over_budget);
  EXPECT_GT(choice.assumed_seconds, 1e-3);
}

TEST(ProxiesOf13B, no_memory_is_refused) {
  const spec::Job job = thirteen_billion();
  EXPECT_THROW(choose_proxies(job, planned(job), processors(2, 1000), {}), UserError);
}

TEST(Proxies, a_model_whose_inside_is_not_known_is_refused) {
  spec::Job job = thirteen_billion();
  const plan::Candidate target = planned(job);
  for (const spec::Arch arch : {spec::Arch::kTorchScript, spec::Arch::kPlugin}) {
    job.model.arch = arch;
    try {
      choose_proxies(job, target, processors(2), {});
      FAIL() << to_string(arch);
    } catch (const UserError& error) {
      EXPECT_EQ(error.code(), ExitCode::kUsage);
      EXPECT_NE(std::string(error.what()).find("inside is not known"), std::string::npos) << error.what();
    }
  }
}

TEST(ProxiesOf13B, leave_out_what_happens_between_steps) {
  spec::Job job = thirteen_billion();
  job.weights = "/models/llama";
  job.checkpoint.every_steps = 10;
  job.evaluation.every_steps = 5;
  const spec::Job proxy = choose_proxies(job, planned(job), processors(2), {}).proxies.front().job;
  EXPECT_TRUE(proxy.weights.empty());
  EXPECT_EQ(proxy.checkpoint.every_steps, 0);
  EXPECT_FALSE(proxy.checkpoint.at_end);
  EXPECT_EQ(proxy.evaluation, spec::Evaluation{});
  EXPECT_EQ(proxy.recovery.snapshots.every, 0);
  EXPECT_EQ(proxy.steps, 20);
  EXPECT_EQ(proxy.tokens, 0);
}

TEST(ProxiesOfSmallJobs, a_job_that_fits_is_its_own_proxy) {
  const spec::Job job = spec::parse_job(
      "model: mnist-cnn\ncluster: 1x2xcpu\ndata: {kind: mnist, path: x}\nbatch: {micro: 32}\nepochs: 2\n", "mnist");
  const plan::Plan plan = make_plan(job);
  const ProxyChoice choice = choose_proxies(job, plan.best, processors(2), {});
  ASSERT_EQ(choice.proxies.size(), 1u);
  EXPECT_TRUE(choice.proxies.front().is_job);
  EXPECT_EQ(choice.proxies.front().job.model, job.model);
  EXPECT_EQ(choice.proxies.front().job.data.kind, spec::DataKind::kImages);
  EXPECT_EQ(choice.proxies.front().checks, (std::vector<Parallelism>{Parallelism::kReplicas}));
}

TEST(ProxiesOfSmallJobs, image_networks_keep_their_structure_and_shrink_their_batch) {
  const spec::Job job = spec::parse_job(
      "model: {preset: resnet50, classes: 1000, image_size: 224}\ncluster: 1x8xH200\nprecision: bf16\n"
      "data: {kind: images, path: x}\nbatch: {micro: 256}\nlayout: {dp: 8}\nsteps: 10\n",
      "resnet");
  const ProxyChoice choice = choose_proxies(job, planned(job), processors(2), {});
  const spec::Job& proxy = choice.proxies.front().job;
  EXPECT_EQ(proxy.model.stage_blocks, job.model.stage_blocks);
  EXPECT_LT(proxy.batch.micro, 256);
  EXPECT_LE(proxy.model.image_size, 224);
  EXPECT_FALSE(choice.over_budget);
  EXPECT_EQ(layouts_of(choice), (std::vector<std::string>{"dp=2"}));
}

TEST(TimedRelative, has_operators_that_calibration_knows) {
  for (const char* name : {"mixtral-8x7b", "mamba-2.8b", "bert-base", "llama2-7b", "gpt2-124m"}) {
    const spec::Model relative = timed_relative(spec::load_model(name));
    EXPECT_FALSE(cost::list_operators(relative, 1, 16).empty()) << name;
    EXPECT_EQ(relative.hidden, spec::load_model(name).hidden);
  }
}

}  // namespace
}  // namespace lockstep::planner
