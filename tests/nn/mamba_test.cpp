#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "lockstep/nn/deferred_gradients.h"
#include "lockstep/nn/language_model.h"
#include "tests/nn/small_models.h"
#include "tests/parallel/ranks.h"

namespace lockstep::nn {
namespace {

using testing::small_mamba;
using testing::tokens_for;
using torch::Tensor;
using Tensors = std::map<std::string, Tensor>;

BuildOptions fp64(std::uint64_t seed = 3) {
  BuildOptions options;
  options.dtype = torch::kDouble;
  options.seed = seed;
  return options;
}

Tensors parameters_of(const torch::nn::Module& model) {
  Tensors all;
  for (const DeclaredParameter& p : declared_parameters(model)) all[p.name] = p.tensor;
  return all;
}

std::int64_t elements_of(const torch::nn::Module& model) {
  std::int64_t count = 0;
  for (const Tensor& parameter : model.parameters()) count += parameter.numel();
  return count;
}

TEST(Mamba, has_the_names_and_shapes_of_hugging_face) {
  const auto model = build_model(small_mamba(), fp64());
  std::map<std::string, std::vector<std::int64_t>> shapes;
  for (const auto& [name, tensor] : parameters_of(*model)) shapes[name] = tensor.sizes().vec();
  std::map<std::string, std::vector<std::int64_t>> expected{{"backbone.embeddings.weight", {61, 24}},
                                                            {"backbone.norm_f.weight", {24}}};
  for (const std::string layer : {"backbone.layers.0.", "backbone.layers.1."}) {
    expected[layer + "norm.weight"] = {24};
    expected[layer + "mixer.in_proj.weight"] = {96, 24};
    expected[layer + "mixer.conv1d.weight"] = {48, 1, 4};
    expected[layer + "mixer.conv1d.bias"] = {48};
    expected[layer + "mixer.x_proj.weight"] = {11, 48};
    expected[layer + "mixer.dt_proj.weight"] = {48, 3};
    expected[layer + "mixer.dt_proj.bias"] = {48};
    expected[layer + "mixer.A_log"] = {48, 4};
    expected[layer + "mixer.D"] = {48};
    expected[layer + "mixer.out_proj.weight"] = {24, 48};
  }
  EXPECT_EQ(shapes, expected);
}

TEST(Mamba, has_as_many_parameters_as_the_spec_counts) {
  for (const bool tied : {true, false}) {
    for (const bool bias : {true, false}) {
      spec::Model spec = small_mamba();
      spec.tied_embeddings = tied;
      spec.bias = bias;
      EXPECT_EQ(elements_of(*build_model(spec, fp64())), spec::parameter_count(spec)) << tied << bias;
    }
  }
  BuildOptions shapes_only;
  shapes_only.device = torch::kMeta;
  const spec::Model preset = spec::load_model("mamba-130m");
  EXPECT_EQ(elements_of(*build_model(preset, shapes_only)), spec::parameter_count(preset));
}

TEST(Mamba, starts_with_the_published_values) {
  spec::Model spec = small_mamba();
  spec.hidden = 512;
  spec.dt_rank = 16;
  Tensors values = parameters_of(*build_model(spec, fp64()));
  const auto mixer = [&](const char* name) { return values.at("backbone.layers.1.mixer." + std::string(name)); };
  const auto mean = [](const Tensor& t) { return t.mean().item<double>(); };
  const auto largest = [](const Tensor& t) { return t.abs().max().item<double>(); };
  const Tensor logs = torch::arange(1, 5, torch::dtype(torch::kDouble)).log();
  EXPECT_TRUE(torch::equal(mixer("A_log"), logs.expand({1024, 4})));
  EXPECT_TRUE(torch::equal(mixer("D"), torch::ones({1024}, torch::dtype(torch::kDouble))));
  const Tensor dt = at::softplus(mixer("dt_proj.bias")).log();  // uniform between the logs of 1e-3 and 0.1
  EXPECT_GE(dt.min().item<double>(), std::log(1e-3) - 1e-9);
  EXPECT_LE(dt.max().item<double>(), std::log(0.1) + 1e-9);
  EXPECT_NEAR(mean(dt), std::log(1e-2), 0.2);
  EXPECT_NEAR(dt.std().item<double>(), std::log(100.0) / std::sqrt(12.0), 0.1);
  EXPECT_NEAR(largest(mixer("dt_proj.weight")), 0.25, 0.005);
  EXPECT_NEAR(mixer("dt_proj.weight").std().item<double>(), 0.25 / std::sqrt(3.0), 0.005);
  EXPECT_NEAR(largest(mixer("conv1d.weight")), 0.5, 0.01);
  EXPECT_EQ(largest(mixer("conv1d.bias")), 0.0);
  EXPECT_NEAR(largest(mixer("out_proj.weight")), 1 / 32.0, 0.001);
  for (const Tensor& normal : {mixer("in_proj.weight"), mixer("x_proj.weight"), values["backbone.embeddings.weight"]}) {
    EXPECT_NEAR(normal.std().item<double>(), spec.init_std, 0.001);
  }
}

// What one experiment gave: the sum of losses over all targets, parameters and gradients of the whole model.
struct Outcome {
  double loss = 0;
  Tensors parameters;
  Tensors gradients;
};

struct Experiment {
  spec::Model spec = small_mamba();
  std::int64_t seq = 24;
  int tp = 1;
  int cp = 1;
  bool sequence_parallel = false;
  Tensor tokens() const { return tokens_for(spec, 2, seq); }
  Tensor targets() const { return tokens_for(spec, 2, seq, 1); }
};

// Adds a rank's part to the whole tensor.
void add_part(Tensors& sums, const DeclaredParameter& p, const Tensor& part) {
  auto [slot, fresh] = sums.try_emplace(p.name);
  if (fresh) slot->second = torch::zeros(p.placement.whole, torch::dtype(torch::kDouble));
  Tensor whole = slot->second.view({-1});
  const Tensor flat = part.detach().reshape({-1});
  for (const Run& run : runs_of(p.placement, 0, flat.numel())) {
    whole.narrow(0, run.whole, run.count).add_(flat.narrow(0, run.local, run.count));
  }
}

Outcome on_one_rank(const Experiment& experiment) {
  const auto model = build_model(experiment.spec, fp64());
  const Tensor loss = model->loss(experiment.tokens(), experiment.targets(), {}).loss_sum;
  loss.backward();
  Outcome outcome{loss.item<double>(), parameters_of(*model), {}};
  for (const auto& [name, tensor] : outcome.parameters) outcome.gradients[name] = tensor.grad();
  return outcome;
}

// Ranks of one context-parallel group are neighbours in tp: rank = cp_rank * tp + tp_rank.
Partition partition_of(comm::Communicator world, const Experiment& experiment) {
  const auto group = [&](int first, int stride, int count, const char* name) {
    std::vector<int> ranks;
    for (int i = 0; i < count; ++i) ranks.push_back(first + i * stride);
    return count > 1 ? world.subgroup(ranks, name) : comm::Communicator();
  };
  Partition partition;
  const int tp_rank = world.rank() % experiment.tp, cp_rank = world.rank() / experiment.tp;
  partition.tp = group(cp_rank * experiment.tp, 1, experiment.tp, "tp");
  partition.cp = group(tp_rank, experiment.tp, experiment.cp, "cp");
  partition.sequence_parallel = experiment.sequence_parallel;
  return partition;
}

Outcome on_ranks(const Experiment& experiment) {
  Outcome outcome;
  std::mutex mutex;
  parallel::run_ranks(experiment.tp * experiment.cp, [&](comm::Communicator world) {
    BuildOptions options = fp64();
    options.partition = partition_of(world, experiment);
    const Partition& partition = options.partition;
    const auto model = build_model(experiment.spec, options);
    ForwardContext context;
    context.positions = context_positions(experiment.seq, partition.cp_rank(), experiment.cp, /*balanced=*/false);
    const auto rows = [&](const Tensor& t) { return t.index_select(1, context.positions); };
    const Tensor loss = model->loss(rows(experiment.tokens()), rows(experiment.targets()), context).loss_sum;
    loss.backward();
    const std::lock_guard lock(mutex);
    if (partition.tp_rank() == 0) outcome.loss += loss.item<double>();
    for (const DeclaredParameter& p : declared_parameters(*model)) {
      const bool first_sharer = partition.tp_rank() % p.placement.sharers == 0;
      if (partition.cp_rank() == 0 && first_sharer) add_part(outcome.parameters, p, p.tensor);
      if (first_sharer || p.placement.partial_gradient) add_part(outcome.gradients, p, p.tensor.grad());
    }
  });
  return outcome;
}

void expect_equal(const Outcome& split, const Outcome& whole, const std::string& layout) {
  EXPECT_NEAR(split.loss, whole.loss, 1e-11 * whole.loss) << layout;
  ASSERT_EQ(split.gradients.size(), whole.gradients.size()) << layout;
  for (const auto& [name, expected] : whole.gradients) {
    EXPECT_TRUE(torch::equal(split.parameters.at(name), whole.parameters.at(name).detach())) << layout << ": " << name;
    const double error = (split.gradients.at(name) - expected).abs().max().item<double>();
    EXPECT_LE(error, 1e-11 * expected.abs().max().item<double>()) << layout << ": gradient of " << name;
  }
}

TEST(Mamba, over_tensor_parallel_ranks_computes_what_one_rank_does) {
  for (const int tp : {2, 3}) {
    for (const bool sequence_parallel : {false, true}) {
      Experiment experiment{.tp = tp, .sequence_parallel = sequence_parallel};
      experiment.spec.bias = true;
      experiment.spec.tied_embeddings = tp == 2;
      expect_equal(on_ranks(experiment), on_one_rank(experiment),
                   "tp " + std::to_string(tp) + (sequence_parallel ? " with sequence parallel" : ""));
    }
  }
}

TEST(Mamba, over_context_parallel_ranks_computes_what_one_rank_does) {
  for (const int cp : {2, 3}) {
    const Experiment experiment{.cp = cp};
    expect_equal(on_ranks(experiment), on_one_rank(experiment), "cp " + std::to_string(cp));
  }
}

TEST(Mamba, over_tensor_and_context_parallel_ranks_computes_what_one_rank_does) {
  const Experiment experiment{.tp = 2, .cp = 2, .sequence_parallel = true};
  expect_equal(on_ranks(experiment), on_one_rank(experiment), "tp 2, cp 2");
}

TEST(Mamba, over_context_parallel_ranks_may_have_fewer_rows_than_the_convolution_reaches_back) {
  for (const std::int64_t rows_per_rank : {1, 2}) {
    const Experiment experiment{.seq = 4 * rows_per_rank, .cp = 4};
    expect_equal(on_ranks(experiment), on_one_rank(experiment), std::to_string(rows_per_rank) + " rows per rank");
  }
}

TEST(Mamba, over_context_parallel_ranks_needs_no_convolution) {
  Experiment experiment{.cp = 2};
  experiment.spec.conv_kernel = 1;
  expect_equal(on_ranks(experiment), on_one_rank(experiment), "cp 2, one tap");
}

TEST(Mamba, in_two_parts_computes_what_the_whole_does) {
  const Experiment experiment;
  const Outcome whole = on_one_rank(experiment);
  BuildOptions front = fp64(), back = fp64();
  front.part = {.first_layer = 0, .end_layer = 1, .embedding = true, .head = false};
  back.part = {.first_layer = 1, .end_layer = 2, .embedding = false, .head = true};
  const auto first = make_mamba(experiment.spec, front), second = make_mamba(experiment.spec, back);
  initialise(*first, front.seed);
  initialise(*second, back.seed);
  const ForwardContext context;
  const Tensor middle = first->run_layer(0, 0, first->embed(experiment.tokens(), context), context).hidden;
  const Tensor last = second->run_layer(1, 0, middle, context).hidden;
  const Tensor loss = second->head_loss(last, experiment.tokens(), experiment.targets(), context).loss_sum;
  EXPECT_EQ(loss.item<double>(), whole.loss);
  EXPECT_EQ(first->parts_per_layer(), 1);
}

TEST(Mamba, deferred_weight_gradients_are_the_same) {
  const Experiment experiment;
  const Outcome whole = on_one_rank(experiment);
  const auto model = build_model(experiment.spec, fp64());
  const Tensor loss = model->loss(experiment.tokens(), experiment.targets(), {}).loss_sum;
  WeightGradientQueue queue;
  {
    const DeferWeightGradients defer(&queue);
    loss.backward();
  }
  const Tensors parameters = parameters_of(*model);
  for (const char* name : {"in_proj", "x_proj", "dt_proj", "out_proj"}) {
    const Tensor& weight = parameters.at("backbone.layers.0.mixer." + std::string(name) + ".weight");
    EXPECT_FALSE(weight.grad().defined()) << name << " was not deferred";
  }
  queue.run();
  for (const auto& [name, tensor] : parameters) {
    EXPECT_TRUE(torch::allclose(tensor.grad(), whole.gradients.at(name), 1e-12, 1e-12)) << name;
  }
}

}  // namespace
}  // namespace lockstep::nn
