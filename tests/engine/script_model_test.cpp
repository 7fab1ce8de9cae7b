// Modules that nobody here wrote (made by libtorch's own compiler, as Python's torch.jit.script would save them),
// trained under data parallelism, ZeRO and pipelines.
#include <gtest/gtest.h>
#include <torch/optim.h>
#include <torch/script.h>

#include <filesystem>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/engine/probe.h"
#include "lockstep/engine/train.h"
#include "lockstep/nn/script_model.h"
#include "lockstep/plan/stage_layers.h"
#include "lockstep/plan/verdict.h"

namespace lockstep::engine {
namespace {

using torch::Tensor;
using torch::jit::Module;

constexpr std::int64_t kSamples = 32, kFeatures = 6, kHidden = 10, kClasses = 3;

Tensor drawn(std::vector<std::int64_t> sizes, std::uint64_t seed) {
  auto generator = at::detail::createCPUGenerator(seed);
  return torch::randn(sizes, generator);
}

void add_parameter(Module& module, const std::string& name, const Tensor& value) {
  module.register_parameter(name, value.detach().requires_grad_(true), false);
}

Module linear(const std::string& name, std::int64_t in, std::int64_t out, std::uint64_t seed) {
  Module module("__torch__." + name);
  add_parameter(module, "weight", drawn({out, in}, seed) / std::sqrt(static_cast<double>(in)));
  add_parameter(module, "bias", drawn({out}, seed + 1) * 0.1);
  module.define("def forward(self, x):\n  return torch.linear(x, self.weight, self.bias)\n");
  return module;
}

// x -> relu(a x) -> relu(b x) -> c x: a chain.
Module chain() {
  Module module("__torch__.Chain");
  module.register_module("a", linear("A", kFeatures, kHidden, 1));
  module.register_module("b", linear("B", kHidden, kHidden, 3));
  module.register_module("c", linear("C", kHidden, kClasses, 5));
  module.define(
      "def forward(self, x):\n  x = torch.relu(self.a.forward(x))\n  x = torch.relu_(self.b.forward(x))\n"
      "  return self.c.forward(x)\n");
  return module;
}

// Two inputs, and a value that skips the middle.
Module skipping() {
  Module module("__torch__.Skipping");
  module.register_module("a", linear("SA", kFeatures, kHidden, 11));
  module.register_module("b", linear("SB", kHidden, kHidden, 13));
  module.register_module("c", linear("SC", kHidden, 4, 15));
  add_parameter(module, "scale", torch::ones({kHidden}));
  module.define(
      "def forward(self, x, t):\n  first = self.a.forward(x) + t.unsqueeze(1)\n"
      "  middle = torch.tanh(self.b.forward(torch.relu(first)))\n"
      "  return self.c.forward(middle * self.scale + first)\n");
  return module;
}

Tensor weight_of(const Module& module) {
  return module.attr("a").toModule().attr("weight").toTensor().detach().to(torch::kFloat64);
}

class ScriptRuns : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("lockstep-script-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
    tensors_ = {{"x", drawn({kSamples, kFeatures}, 21)},
                {"t", drawn({kSamples}, 22)},
                {"y", drawn({kSamples, 4}, 23)},
                {"label", (drawn({kSamples}, 24).abs() * 2).to(torch::kInt64).clamp(0, kClasses - 1)}};
    checkpoint::write_safetensors(folder_ / "data.safetensors", tensors_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  spec::Job job_of(const Module& module, const std::string& loss, const std::string& data) {
    module.save((folder_ / "net.pt").string());
    const std::string yaml =
        "model: {torchscript: " + (folder_ / "net.pt").string() + ", loss: " + loss +
        "}\ncluster: 1x1xcpu\ndata: {kind: tensors, path: " + (folder_ / "data.safetensors").string() +
        ", shuffle: false, holdout: 0, " + data +
        "}\nbatch: {micro: 8}\noptimizer: {kind: sgd, learning_rate: 0.1, weight_decay: 0}\n"
        "steps: 6\n";
    spec::Job job = spec::parse_job(yaml, "test");
    job.model.script.facts = probe_script(job);
    return job;
  }
  spec::Job chain_job() { return job_of(chain(), "cross_entropy", "inputs: [x], target: label"); }
  spec::Job skipping_job() { return job_of(skipping(), "mse", "inputs: [x, t], target: y"); }

  static TrainResult trained(spec::Job job, const std::string& layout_text, std::int64_t micro,
                             spec::Precision precision = spec::Precision::kFp64, std::int64_t accumulation = 1) {
    job.precision = precision;
    job.batch.micro = micro;
    job.batch.accumulation = accumulation;
    plan::Layout layout = plan::parse_layout(layout_text);
    layout.precision = precision;
    return train(job, layout, {});
  }

  static void expect_same(const TrainResult& a, const TrainResult& b, double bound) {
    ASSERT_EQ(a.losses.size(), b.losses.size());
    for (std::size_t i = 0; i < b.losses.size(); ++i) EXPECT_NEAR(a.losses[i], b.losses[i], bound) << "step " << i;
    ASSERT_EQ(a.weights.size(), b.weights.size());
    for (const auto& [name, tensor] : b.weights) {
      EXPECT_LE((a.weights.at(name) - tensor).abs().max().item<double>(), bound) << name;
    }
  }

  std::filesystem::path folder_;
  checkpoint::TensorMap tensors_;
};

TEST_F(ScriptRuns, a_chain_is_cut_at_its_children_with_one_tensor_between_them) {
  const spec::ScriptFacts facts = chain_job().model.script.facts;
  ASSERT_EQ(facts.units.size(), 3u);
  EXPECT_EQ(facts.units[1].name, "b");
  EXPECT_EQ(facts.units[1].entering, std::vector<std::int64_t>{kHidden});
  EXPECT_EQ(facts.units[2].parameters, kHidden * kClasses + kClasses);
  EXPECT_EQ(facts.parameters, 6 * 10 + 10 + 10 * 10 + 10 + 10 * 3 + 3);
  EXPECT_EQ(plan::most_positions(facts), 3);
  EXPECT_EQ(spec::script_facts(spec::to_text(facts), "test"), facts);
}

TEST_F(ScriptRuns, products_and_activations_of_a_sample_are_counted) {
  const spec::ScriptFacts facts = chain_job().model.script.facts;
  std::int64_t products = 0;
  for (const spec::ScriptProduct& product : facts.products)
    products += product.count * product.m * product.n * product.k;
  EXPECT_EQ(products, 6 * 10 + 10 * 10 + 10 * 3);
  EXPECT_GE(facts.units[0].saved_bytes, kHidden * 4);
  EXPECT_GT(facts.sample_seconds + facts.base_seconds, 0.0);
}

TEST_F(ScriptRuns, losses_are_those_of_a_plain_loop) {
  const TrainResult ours = trained(chain_job(), "dp=1", 8, spec::Precision::kFp32);
  Module module = chain();
  std::vector<Tensor> parameters;
  for (const Tensor& tensor : module.parameters()) parameters.push_back(tensor);
  ASSERT_EQ(parameters.size(), 6u);
  torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
  for (std::size_t step = 0; step < ours.losses.size(); ++step) {
    const auto first = static_cast<std::int64_t>(step) * 8 % kSamples;
    const Tensor logits = module.forward({tensors_.at("x").narrow(0, first, 8)}).toTensor();
    const Tensor loss = torch::cross_entropy_loss(logits, tensors_.at("label").narrow(0, first, 8));
    EXPECT_NEAR(loss.item<double>(), ours.losses[step], 1e-6) << "step " << step;
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
}

TEST_F(ScriptRuns, every_division_of_ranks_trains_the_same) {
  for (const bool skips : {false, true}) {
    const spec::Job job = skips ? skipping_job() : chain_job();
    const TrainResult one = trained(job, "dp=1", 8);
    EXPECT_FALSE(one.weights.at("a.weight").equal(skips ? weight_of(skipping()) : weight_of(chain())));
    for (const char* layout : {"dp=2", "shard=2,zero=3", "shard=2,zero=2", "shard=2,zero=1"}) {
      SCOPED_TRACE(layout);
      expect_same(trained(job, layout, 4), one, 1e-12);
    }
    for (const char* layout : {"dp=4", "shard=4,zero=3", "dp=2,shard=2,zero=3"}) {
      SCOPED_TRACE(layout);
      expect_same(trained(job, layout, 2), one, 1e-12);
    }
  }
}

TEST_F(ScriptRuns, several_inputs_and_values_that_skip_units_train_under_zero_3) {
  const spec::Job job = skipping_job();
  EXPECT_GT(job.model.script.facts.units.size(), 1u);
  expect_same(trained(job, "shard=2,zero=3", 4), trained(job, "dp=1", 8), 1e-12);
}

TEST_F(ScriptRuns, accumulation_and_ranks_without_samples_change_nothing) {
  spec::Job job = chain_job();
  const TrainResult one = trained(job, "dp=1", 8);
  expect_same(trained(job, "dp=1", 2, spec::Precision::kFp64, 4), one, 1e-12);
  job.batch.global = 2;  // of four ranks two have nothing
  spec::Job alone = job;
  job.precision = alone.precision = spec::Precision::kFp64;
  job.batch.micro = 1;
  alone.batch.micro = 2;
  plan::Layout four = plan::parse_layout("shard=4,zero=3"), single;
  four.precision = single.precision = spec::Precision::kFp64;
  expect_same(train(job, four, {}), train(alone, single, {}), 1e-12);
}

TEST_F(ScriptRuns, a_chain_has_pipelines) {
  const spec::Job job = chain_job();
  const TrainResult one = trained(job, "dp=1", 4, spec::Precision::kFp64, 2);
  expect_same(trained(job, "pp=2,schedule=1f1b", 4, spec::Precision::kFp64, 2), one, 1e-12);
  expect_same(trained(job, "pp=3,schedule=gpipe", 4, spec::Precision::kFp64, 2), one, 1e-12);
  expect_same(trained(job, "pp=2,dp=2,schedule=1f1b", 2, spec::Precision::kFp64, 2), one, 1e-12);
}

TEST_F(ScriptRuns, recomputing_units_changes_no_bit) {
  const spec::Job job = chain_job();
  const TrainResult one = trained(job, "dp=1", 8, spec::Precision::kFp32);
  expect_same(trained(job, "dp=1,recompute=full", 8, spec::Precision::kFp32), one, 0.0);
}

TEST_F(ScriptRuns, bf16_is_autocast_with_weights_in_fp32) {
  const spec::Job job = chain_job();
  const TrainResult narrow = trained(job, "dp=1", 8, spec::Precision::kBf16);
  const TrainResult wide = trained(job, "dp=1", 8, spec::Precision::kFp32);
  EXPECT_EQ(narrow.weights.at("a.weight").scalar_type(), torch::kFloat32);
  EXPECT_NE(narrow.losses.front(), wide.losses.front());
  for (std::size_t i = 0; i < wide.losses.size(); ++i) EXPECT_NEAR(narrow.losses[i], wide.losses[i], 0.05);
}

TEST_F(ScriptRuns, layouts_that_need_the_inside_are_refused_with_the_reason) {
  spec::Job job = chain_job();
  job.cluster = {};
  const auto refusal = [&](const std::string& layout, spec::Precision precision = spec::Precision::kFp32) {
    plan::Layout parsed = plan::parse_layout(layout);
    parsed.precision = precision;
    const auto problem = plan::first_refusal(plan::run_of(job, parsed));
    return problem ? problem->text : "";
  };
  EXPECT_NE(refusal("tp=2").find("a module from Python"), std::string::npos) << refusal("tp=2");
  EXPECT_NE(refusal("cp=2").find("a module from Python"), std::string::npos);
  EXPECT_NE(refusal("pp=4,schedule=1f1b").find("3 parts"), std::string::npos) << refusal("pp=4,schedule=1f1b");
  EXPECT_NE(refusal("pp=2,schedule=zero_bubble").find("zero_bubble"), std::string::npos);
  EXPECT_NE(refusal("dp=1,recompute=selective").find("use full"), std::string::npos);
  EXPECT_NE(refusal("dp=1", spec::Precision::kFp16).find("autocast"), std::string::npos);
  EXPECT_EQ(refusal("pp=3,schedule=1f1b"), "");
  job.model.script.facts.draws = true;
  EXPECT_NE(refusal("dp=1,recompute=full").find("dropout"), std::string::npos);
  job.model.script.facts.draws = false;
  job.model.script.facts.updates = true;
  EXPECT_NE(refusal("dp=1,recompute=full").find("running statistics"), std::string::npos);
}

TEST_F(ScriptRuns, the_loss_may_be_the_modules_own) {
  Module module("__torch__.Own");
  module.register_module("a", linear("OA", kFeatures, 4, 31));
  module.define("def forward(self, x, y):\n  d = self.a.forward(x) - y\n  return (d * d).mean()\n");
  const TrainResult returned = trained(job_of(module, "returned", "inputs: [x], target: y"), "dp=2", 4);
  Module plain("__torch__.Plain");
  plain.register_module("a", linear("PA", kFeatures, 4, 31));
  plain.define("def forward(self, x):\n  return self.a.forward(x)\n");
  expect_same(returned, trained(job_of(plain, "mse", "inputs: [x], target: y"), "dp=1", 8), 1e-12);
}

TEST_F(ScriptRuns, weights_with_two_names_are_one_and_lists_of_weights_follow) {
  Module module("__torch__.Tied");
  const Tensor weight = (drawn({kFeatures, kFeatures}, 41) * 0.3).requires_grad_(true);
  module.register_parameter("weight", weight, false);
  module.register_parameter("again", weight, false);
  module.register_attribute("_flat_weights", c10::ListType::ofTensors(), c10::List<Tensor>({weight}));
  module.register_module("last", linear("TL", kFeatures, 4, 43));
  module.define(
      "def forward(self, x):\n  x = torch.relu(x @ self.weight)\n  x = torch.relu(x @ self._flat_weights[0])\n"
      "  return self.last.forward(x @ self.again)\n");
  const spec::Job job = job_of(module, "mse", "inputs: [x], target: y");
  EXPECT_EQ(job.model.script.facts.parameters, kFeatures * kFeatures + kFeatures * 4 + 4);
  EXPECT_EQ(job.model.script.facts.aliases.size(), 1u);
  const TrainResult ours = trained(job, "shard=2,zero=3", 4, spec::Precision::kFp32);
  Tensor own = weight.detach().clone().requires_grad_(true);
  Tensor last = drawn({4, kFeatures}, 43) / std::sqrt(static_cast<double>(kFeatures));
  Tensor bias = drawn({4}, 44) * 0.1;
  last.requires_grad_(true);
  bias.requires_grad_(true);
  torch::optim::SGD optimizer(std::vector<Tensor>{own, last, bias}, torch::optim::SGDOptions(0.1).momentum(0.9));
  for (std::size_t step = 0; step < ours.losses.size(); ++step) {
    const auto first = static_cast<std::int64_t>(step) * 8 % kSamples;
    Tensor x = tensors_.at("x").narrow(0, first, 8);
    x = torch::relu(torch::relu(x.matmul(own)).matmul(own)).matmul(own);
    const Tensor loss = torch::mse_loss(torch::linear(x, last, bias), tensors_.at("y").narrow(0, first, 8));
    EXPECT_NEAR(loss.item<double>(), ours.losses[step], 1e-6) << "step " << step;
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
}

TEST_F(ScriptRuns, buffers_are_part_of_the_state) {
  Module module("__torch__.Counting");
  module.register_module("a", linear("CA", kFeatures, 4, 51));
  module.register_buffer("seen", torch::zeros({}));
  // A mask: of a dtype that nothing adds up, and not in order in memory.
  const Tensor mask = drawn({4, kFeatures}, 53).t().gt(0.0);
  ASSERT_FALSE(mask.is_contiguous());
  module.register_buffer("mask", mask);
  module.define(
      "def forward(self, x):\n  self.seen.add_(1.0)\n"
      "  return self.a.forward(x) * self.mask[0].to(x.dtype)\n");
  const spec::Job job = job_of(module, "mse", "inputs: [x], target: y");
  EXPECT_TRUE(job.model.script.facts.updates);
  for (const char* layout : {"dp=2", "shard=2,zero=3"}) {
    const TrainResult result = trained(job, layout, 4);
    EXPECT_EQ(result.weights.at("seen").item<double>(), 6.0) << layout;
    EXPECT_TRUE(torch::equal(result.weights.at("mask"), mask)) << layout;
  }
}

TEST_F(ScriptRuns, what_cannot_be_trained_is_refused_in_one_line) {
  const auto complaint = [&](const Module& module, const std::string& data) -> std::string {
    try {
      job_of(module, "mse", data);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_NE(complaint(skipping(), "inputs: [x], target: y").find("reads 2 tensors (x, t)"), std::string::npos);
  EXPECT_NE(complaint(chain(), "inputs: [x], target: y").find("does not compare"), std::string::npos);
  EXPECT_NE(complaint(chain(), "inputs: [z], target: y").find("no tensor `z`"), std::string::npos);
  Module number("__torch__.Number");
  number.register_module("a", linear("NA", kFeatures, 4, 61));
  number.define("def forward(self, x, n: int):\n  return self.a.forward(x) * n\n");
  EXPECT_NE(complaint(number, "inputs: [x], target: y").find("`n` of type int"), std::string::npos);
  Module assigns("__torch__.Assigns");
  assigns.register_module("a", linear("AA", kFeatures, 4, 63));
  assigns.register_buffer("last", torch::zeros({1}));
  assigns.define("def forward(self, x):\n  self.last = x\n  return self.a.forward(x)\n");
  EXPECT_NE(complaint(assigns, "inputs: [x], target: y").find("assigns to self.last"), std::string::npos);
  Module empty("__torch__.Empty");
  empty.define("def forward(self, x):\n  return x\n");
  EXPECT_NE(complaint(empty, "inputs: [x], target: y").find("no parameters"), std::string::npos);
  Module frozen = skipping();
  for (Tensor tensor : frozen.parameters()) tensor.requires_grad_(false);
  EXPECT_NE(complaint(frozen, "inputs: [x, t], target: y").find("no parameters"), std::string::npos);
}

TEST_F(ScriptRuns, a_file_that_changed_or_is_no_module_is_refused) {
  const spec::Job job = chain_job();
  std::ofstream(folder_ / "net.pt") << "not a module";
  EXPECT_THROW(trained(job, "dp=1", 8), UserError);
  EXPECT_THROW(job_of(chain(), "no_such_loss", "inputs: [x], target: label"), UserError);
}

}  // namespace
}  // namespace lockstep::engine
