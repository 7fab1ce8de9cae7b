// Models of plugins under data parallelism, ZeRO and pipelines: the template that users copy, and odd ones.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/data/open_datasets.h"
#include "lockstep/engine/probe.h"
#include "lockstep/engine/schedule.h"
#include "lockstep/engine/train.h"
#include "lockstep/plan/stage_layers.h"
#include "lockstep/plan/verdict.h"

namespace lockstep::engine {
namespace {

const std::string kPlugins = LOCKSTEP_BUILD_DIR "/tests/";

spec::Job waves_job(const std::string& model = "loss: focal, ", const std::string& optimizer = "") {
  const std::string plugin = "plugin: " + kPlugins + "libwaves.so, ";
  spec::Job job =
      spec::parse_job("model: {" + plugin + "arch: mixer, " + model + "layers: 3, width: 8}\ncluster: 1x1xcpu\n" +
                          "data: {" + plugin + "kind: waves, samples: 64, held_out: 8}\nbatch: {micro: 8}\n" +
                          "optimizer: {kind: sgd, learning_rate: 0.1, weight_decay: 0" + optimizer + "}\nsteps: 6\n",
                      "test");
  job.model.script.facts = probe_script(job);
  return job;
}

spec::Job odd_job(const std::string& model, const std::string& data = "") {
  const std::string plugin = "plugin: " + kPlugins + "libodd.so, ";
  spec::Job job = spec::parse_job("model: {" + plugin + "arch: odd" + model + "}\ncluster: 1x1xcpu\ndata: {" + plugin +
                                      "kind: odd" + data + "}\nbatch: {micro: 8}\n" +
                                      "optimizer: {kind: sgd, learning_rate: 0.1, weight_decay: 0}\nsteps: 6\n",
                                  "test");
  job.model.script.facts = probe_script(job);
  return job;
}

TrainResult trained(spec::Job job, const std::string& layout_text, std::int64_t micro,
                    spec::Precision precision = spec::Precision::kFp64, std::int64_t accumulation = 1) {
  job.precision = precision;
  job.batch.micro = micro;
  job.batch.accumulation = accumulation;
  plan::Layout layout = plan::parse_layout(layout_text);
  layout.precision = precision;
  return train(job, layout, {});
}

void expect_same(const TrainResult& a, const TrainResult& b, double bound) {
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < b.losses.size(); ++i) EXPECT_NEAR(a.losses[i], b.losses[i], bound) << "step " << i;
  ASSERT_EQ(a.weights.size(), b.weights.size());
  for (const auto& [name, tensor] : b.weights) {
    EXPECT_LE((a.weights.at(name) - tensor).abs().max().item<double>(), bound) << name;
  }
}

std::string refusal(const spec::Job& job, const std::string& layout,
                    spec::Precision precision = spec::Precision::kFp32) {
  plan::Layout parsed = plan::parse_layout(layout);
  parsed.precision = precision;
  spec::Job anywhere = job;
  anywhere.cluster = {};
  const auto problem = plan::first_refusal(plan::run_of(anywhere, parsed));
  return problem ? problem->text : "";
}

template <class Call>
std::string complaint(Call call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

void expect_in(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

TEST(PluginRuns, what_the_inside_is_like_is_counted) {
  const spec::ScriptFacts facts = waves_job().model.script.facts;
  ASSERT_EQ(facts.units.size(), 5u);
  EXPECT_EQ(facts.units[1].name, "layers.0");
  EXPECT_EQ(facts.units[1].entering, (std::vector<std::int64_t>{32, 8}));
  const std::int64_t embedding = 2 * 8 + 32 * 8, block = 4 * 8 + 33 * 32 + 9 * 16 + 17 * 8, head = 2 * 8 + 9 * 4;
  EXPECT_EQ(facts.parameters, embedding + 3 * block + head);
  EXPECT_EQ(plan::most_positions(facts), 5);
  EXPECT_FALSE(facts.draws || facts.updates || facts.shares || facts.counts_targets);
  EXPECT_GT(facts.sample_seconds + facts.base_seconds, 0.0);
  EXPECT_FALSE(facts.products.empty());
  EXPECT_EQ(spec::script_facts(spec::to_text(facts), "test"), facts);
}

TEST(PluginRuns, every_division_of_ranks_trains_the_same) {
  const spec::Job job = waves_job();
  const TrainResult one = trained(job, "dp=1", 8);
  EXPECT_NE(one.losses.front(), one.losses.back());
  for (const char* layout : {"dp=2", "shard=2,zero=3", "shard=2,zero=2", "shard=2,zero=1"}) {
    SCOPED_TRACE(layout);
    expect_same(trained(job, layout, 4), one, 1e-12);
  }
  for (const char* layout : {"dp=4", "shard=4,zero=3", "dp=2,shard=2,zero=3"}) {
    SCOPED_TRACE(layout);
    expect_same(trained(job, layout, 2), one, 1e-12);
  }
  expect_same(trained(job, "dp=1", 2, spec::Precision::kFp64, 4), one, 1e-12);
}

TEST(PluginRuns, units_are_pipelines) {
  const spec::Job job = waves_job();
  const TrainResult one = trained(job, "dp=1", 4, spec::Precision::kFp64, 2);
  for (const char* layout :
       {"pp=2,schedule=1f1b", "pp=5,schedule=gpipe", "pp=2,virtual_stages=2,schedule=interleaved"}) {
    SCOPED_TRACE(layout);
    expect_same(trained(job, layout, 4, spec::Precision::kFp64, 2), one, 1e-12);
  }
  expect_same(trained(job, "pp=2,shard=2,zero=1,schedule=1f1b", 2, spec::Precision::kFp64, 2), one, 1e-12);
}

TEST(PluginRuns, recomputing_units_changes_no_bit) {
  const spec::Job job = waves_job();
  const TrainResult one = trained(job, "dp=1", 8, spec::Precision::kFp32);
  expect_same(trained(job, "dp=1,recompute=full", 8, spec::Precision::kFp32), one, 0.0);
}

TEST(PluginRuns, bf16_is_autocast_with_weights_in_fp32) {
  const spec::Job job = waves_job();
  const TrainResult narrow = trained(job, "dp=1", 8, spec::Precision::kBf16);
  const TrainResult wide = trained(job, "dp=1", 8, spec::Precision::kFp32);
  EXPECT_EQ(narrow.weights.at("head.classify.weight").scalar_type(), torch::kFloat32);
  EXPECT_NE(narrow.losses.front(), wide.losses.front());
  for (std::size_t i = 0; i < wide.losses.size(); ++i) EXPECT_NEAR(narrow.losses[i], wide.losses[i], 0.05);
}

TEST(PluginRuns, a_loss_of_ours_and_the_models_own_are_the_same_cross_entropy) {
  const TrainResult own = trained(waves_job(""), "dp=2", 4);
  expect_same(own, trained(waves_job("loss: cross_entropy, "), "dp=1", 8), 1e-12);
  expect_same(own, trained(waves_job("loss: focal, loss_options: {gamma: 0}, "), "dp=1", 8), 1e-12);
  EXPECT_NE(own.losses.front(), trained(waves_job(), "dp=1", 8).losses.front());
}

TEST(PluginRuns, weights_depend_on_the_seed_alone) {
  spec::Job job = waves_job();
  const TrainResult one = trained(job, "dp=1", 8);
  expect_same(trained(job, "dp=1", 8), one, 0.0);
  job.seed = 2;
  EXPECT_NE(trained(job, "dp=1", 8).losses.front(), one.losses.front());
}

TEST(PluginRuns, the_rate_is_the_plugins_after_the_warm_up) {
  const std::string text =
      ", warmup_steps: 2, schedule: inverse_power, schedule_options: {power: 1, offset: 10}, plugin: " + kPlugins +
      "libwaves.so";
  const spec::Job job = waves_job("", text);
  const LearningRate rate(job.optimizer);
  EXPECT_DOUBLE_EQ(rate.at(0, 6), 0.05);
  EXPECT_DOUBLE_EQ(rate.at(2, 6), 0.1);
  EXPECT_DOUBLE_EQ(rate.at(12, 6), 0.05);
  expect_same(trained(job, "dp=2", 4), trained(job, "dp=1", 8), 1e-12);
}

TEST(PluginRuns, a_mean_over_targets_is_the_same_under_every_layout) {
  const spec::Job job = odd_job(", counts: targets", ", doing: ignored");
  EXPECT_TRUE(job.model.script.facts.counts_targets);
  const TrainResult one = trained(job, "dp=1", 8);
  expect_same(trained(job, "dp=4", 2), one, 1e-12);
  expect_same(trained(job, "dp=1", 2, spec::Precision::kFp64, 4), one, 1e-12);
}

TEST(PluginRuns, a_module_in_two_units_is_one_weight) {
  const spec::Job job = odd_job(", tied: true");
  EXPECT_TRUE(job.model.script.facts.shares);
  EXPECT_EQ(job.model.script.facts.aliases.at("again.inner.weight"), "first.inner.weight");
  const TrainResult one = trained(job, "dp=1", 8);
  expect_same(trained(job, "shard=2,zero=3", 4), one, 1e-12);
  expect_in(refusal(job, "pp=2,schedule=1f1b"), "uses a weight in several");
}

TEST(PluginRuns, what_needs_the_inside_is_refused_with_the_reason) {
  const spec::Job job = waves_job();
  for (const char* layout : {"tp=2", "cp=2"}) expect_in(refusal(job, layout), "a model of a plugin");
  expect_in(refusal(job, "pp=6,schedule=1f1b"), "5 parts");
  expect_in(refusal(job, "pp=2,schedule=zero_bubble"), "zero_bubble");
  expect_in(refusal(job, "dp=1", spec::Precision::kFp16), "autocast");
  EXPECT_EQ(refusal(job, "pp=5,schedule=1f1b"), "");
  EXPECT_EQ(refusal(job, "dp=1,recompute=full"), "");
}

TEST(PluginRuns, random_numbers_and_running_statistics_are_noticed) {
  const spec::Job draws = odd_job(", doing: draws");
  EXPECT_TRUE(draws.model.script.facts.draws);
  expect_in(refusal(draws, "dp=1,recompute=full"), "dropout");
  const spec::Job updates = odd_job(", doing: updates");
  EXPECT_TRUE(updates.model.script.facts.updates);
  expect_in(refusal(updates, "dp=1,recompute=full"), "running statistics");
  EXPECT_EQ(trained(updates, "shard=2,zero=3", 4).weights.at("doing.norm.num_batches_tracked").item<double>(), 6.0);
}

TEST(PluginRuns, several_tensors_between_units_train_and_have_no_cut) {
  const spec::Job job = odd_job(", doing: several");
  EXPECT_EQ(plan::most_positions(job.model.script.facts), 2);
  expect_same(trained(job, "shard=2,zero=3", 4), trained(job, "dp=1", 8), 1e-12);
  expect_in(refusal(job, "pp=3,schedule=1f1b"), "2 parts");
}

TEST(PluginRuns, what_plugin_code_throws_names_the_plugin) {
  const auto of = [](const std::string& model, const std::string& data = "") {
    return complaint([&] { odd_job(model, data); });
  };
  expect_in(of(", doing: throws"), "libodd.so: model `odd`: forward of unit `doing` failed: no such wave;");
  expect_in(of(", doing: throws_int"), "forward of unit `doing` failed: something that is no std::exception");
  expect_in(of(", doing: shapes"), "libodd.so: model `odd`: forward of unit `doing` failed: ");
  expect_in(of(", doing: nothing"), "unit `doing` returns nothing");
  expect_in(of(", doing: constructor"), "its constructor failed: the constructor does not like this");
  expect_in(of(", counts: wrong"), "loss counts 1, and there are 2 samples");
  expect_in(of("", ", doing: throws"), "libodd.so: dataset `odd`: fetch failed: the disk is gone");
  expect_in(of("", ", doing: short"), "returns a tensor that has not so many");
}

TEST(PluginRuns, a_rate_that_is_none_is_refused) {
  const spec::Job job = waves_job("", ", schedule: not-a-rate, plugin: " + kPlugins + "libodd.so");
  expect_in(complaint([&] { LearningRate(job.optimizer).at(0, 6); }),
            "schedule `not-a-rate`: the rate of step 0 is nan");
}

}  // namespace
}  // namespace lockstep::engine
