#include "lockstep/engine/sharded_optimizer.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/comm/local.h"

namespace lockstep::engine {
namespace {

using parallel::TensorMap;

constexpr int kSteps = 50;

// Two matrices, a bias and a scalar.
class Weights : public nn::Layer {
 public:
  explicit Weights(const torch::TensorOptions& options) {
    const auto make = [&](const char* name, std::vector<std::int64_t> sizes) {
      return declare(name, {.whole = std::move(sizes)}, nn::normal_value(0.0, 1.0), options);
    };
    first = make("first", {7, 13});
    bias = make("bias", {13});
    second = make("second", {13, 3});
    gain = make("gain", {1});
  }
  torch::Tensor first, bias, second, gain;
};

torch::Tensor loss_of(const Weights& w, std::int64_t step) {
  torch::manual_seed(100 + step);
  const torch::Tensor x = torch::randn({16, 7}, torch::kFloat64).to(w.first.scalar_type());
  return ((torch::tanh(x.mm(w.first) + w.bias)).mm(w.second) * w.gain - 1).square().mean();
}

class Net : public nn::TrainableModel {
 public:
  Net(const spec::Model& spec, const nn::BuildOptions& build) : TrainableModel(spec, build.dtype) {
    weights = register_module("w", std::make_shared<Weights>(torch::TensorOptions().dtype(build.dtype)));
  }
  torch::Tensor forward(const torch::Tensor& input, const nn::ForwardContext&) override { return input; }
  nn::LossResult loss(const torch::Tensor&, const torch::Tensor&, const nn::ForwardContext& context) override {
    return {loss_of(*weights, context.step).to(torch::kFloat64), 1};
  }
  std::shared_ptr<Weights> weights;
};

// The net as the engine trains it, on one rank.
struct Trained {
  explicit Trained(const spec::Optimizer& given, torch::ScalarType dtype = torch::kFloat64)
      : settings(given), world(1) {
    parallel::ParallelModelOptions options;
    options.dtype = dtype;
    const bool wide = dtype == torch::kFloat64;
    options.gradient_dtype = options.master_dtype = wide ? torch::kFloat64 : torch::kFloat32;
    options.make_model = [](const spec::Model& spec, const nn::BuildOptions& build) {
      return std::make_shared<Net>(spec, build);
    };
    spec::Model spec;
    spec.arch = spec::Arch::kCifarCnn;
    model = std::make_unique<parallel::ParallelModel>(spec, options, world.communicator(0));
    optimizer = std::make_unique<ShardedOptimizer>(settings, *model);
  }
  Weights& weights() { return *dynamic_cast<Net&>(*model->models().front()).weights; }
  const parallel::FlatShard& shard() const { return *model->shards().front(); }
  void train(int from, int to, double clip = 0.0) {
    for (int step = from; step < to; ++step) {
      parallel::MicroBatch batch{torch::zeros({1}), torch::zeros({1}, torch::kInt64), {}};
      batch.context.step = step;
      batch.loss_weight = 1.0;
      model->run({batch});
      optimizer->step(settings.learning_rate, clip_factor(std::sqrt(model->squared_norm()), clip));
    }
  }

  spec::Optimizer settings;
  comm::LocalWorld world;
  std::unique_ptr<parallel::ParallelModel> model;
  std::unique_ptr<ShardedOptimizer> optimizer;
};

spec::Optimizer adamw_options() {
  spec::Optimizer options;
  options.learning_rate = 1e-2;
  options.beta2 = 0.95;
  options.weight_decay = 0.1;
  return options;
}

spec::Optimizer sgd_options(bool nesterov) {
  spec::Optimizer options;
  options.kind = spec::OptimizerKind::kSgd;
  options.learning_rate = 1e-2;
  options.weight_decay = 1e-3;
  options.nesterov = nesterov;
  return options;
}

// Clips as torch.nn.utils.clip_grad_norm_ does, written out: its C++ twin rounds the norm to fp32.
void clip_reference(const std::vector<torch::Tensor>& parameters, double limit) {
  double squares = 0.0;
  for (const torch::Tensor& parameter : parameters) squares += parameter.grad().square().sum().item<double>();
  const double factor = std::min(1.0, limit / (std::sqrt(squares) + 1e-6));
  for (const torch::Tensor& parameter : parameters) parameter.grad().mul_(factor);
}

// Two groups, as PyTorch users write them: the second one, of biases and other vectors, is not decayed.
template <typename Options>
std::vector<torch::optim::OptimizerParamGroup> groups_of(const Weights& weights, const Options& options,
                                                         spec::Decay decay) {
  if (decay == spec::Decay::kAll) return {{weights.parameters(), std::make_unique<Options>(options)}};
  std::vector<torch::Tensor> matrices, vectors;
  for (const torch::Tensor& parameter : weights.parameters()) {
    (parameter.dim() >= 2 ? matrices : vectors).push_back(parameter);
  }
  Options without = options;
  without.weight_decay(0.0);
  return {{matrices, std::make_unique<Options>(options)}, {vectors, std::make_unique<Options>(without)}};
}

template <typename Reference, typename Options>
void expect_training_equals(const spec::Optimizer& settings, const Options& options) {
  constexpr double kClip = 0.5;
  Trained net(settings);
  Weights twin(torch::TensorOptions().dtype(torch::kFloat64));
  {
    const torch::NoGradGuard no_grad;
    for (const auto& item : net.weights().named_parameters()) twin.named_parameters()[item.key()].copy_(item.value());
  }
  Reference reference(groups_of(twin, options, settings.decay), options);
  for (int step = 0; step < kSteps; ++step) {
    reference.zero_grad();
    loss_of(twin, step).backward();
    clip_reference(twin.parameters(), kClip);
    reference.step();
  }
  net.train(0, kSteps, kClip);
  EXPECT_EQ(net.optimizer->steps(), kSteps);
  for (const auto& item : net.weights().named_parameters()) {
    const torch::Tensor difference = (item.value() - twin.named_parameters()[item.key()]).detach().abs();
    EXPECT_LT(difference.max().item<double>(), 1e-13) << item.key();
  }
}

TEST(Optimizer, adamw_trains_as_libtorchs_over_fifty_steps) {
  expect_training_equals<torch::optim::AdamW>(
      adamw_options(), torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1));
}

TEST(Optimizer, sgd_trains_as_libtorchs_over_fifty_steps) {
  for (const bool nesterov : {false, true}) {
    expect_training_equals<torch::optim::SGD>(
        sgd_options(nesterov), torch::optim::SGDOptions(1e-2).momentum(0.9).weight_decay(1e-3).nesterov(nesterov));
  }
}

// Rates at which a decayed vector would be far off.
TEST(Optimizer, decays_matrices_alone_as_two_groups_of_libtorchs_do) {
  spec::Optimizer adamw = adamw_options();
  adamw.decay = spec::Decay::kMatrices;
  expect_training_equals<torch::optim::AdamW>(
      adamw, torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1));
  spec::Optimizer sgd = sgd_options(true);
  sgd.decay = spec::Decay::kMatrices;
  expect_training_equals<torch::optim::SGD>(
      sgd, torch::optim::SGDOptions(1e-2).momentum(0.9).weight_decay(1e-3).nesterov(true));
}

TensorMap cloned(const TensorMap& tensors) {
  TensorMap result;
  for (const auto& [name, tensor] : tensors) result.emplace(name, tensor.clone());
  return result;
}

void load(ShardedOptimizer& optimizer, const TensorMap& state) {
  checkpoint::CheckpointContents contents;
  contents.optimizer = state;
  optimizer.load(checkpoint::ContentsSource(contents));
}

TEST(Optimizer, continues_bit_for_bit_from_a_saved_state) {
  for (const spec::Optimizer& options : {adamw_options(), sgd_options(true)}) {
    Trained net(options, torch::kFloat32);
    net.train(0, 10);
    const TensorMap state = cloned(net.optimizer->assemble());
    const torch::Tensor weights = net.shard().master().clone();
    net.train(10, 20);
    Trained again(options, torch::kFloat32);
    again.shard().master().copy_(weights);
    load(*again.optimizer, state);
    EXPECT_EQ(again.optimizer->steps(), 10);
    again.train(10, 20);
    EXPECT_TRUE(torch::equal(again.shard().master(), net.shard().master()));
  }
}

TEST(Optimizer, refuses_a_state_that_does_not_fit) {
  Trained net(adamw_options());
  const TensorMap good = cloned(net.optimizer->assemble());
  EXPECT_EQ(good.size(), 1u + 2u * 4u);
  TensorMap state = good;
  state["optimizer.exp_avg.w.bias"] = torch::zeros({2}, torch::kFloat64);
  EXPECT_THROW(load(*net.optimizer, state), UserError);
  state = good;
  state.erase("optimizer.step");
  EXPECT_THROW(load(*net.optimizer, state), UserError);
  state["optimizer.step"] = torch::full({}, -3, torch::kInt64);
  EXPECT_THROW(load(*net.optimizer, state), UserError);
}

TEST(Optimizer, refuses_options_that_make_no_sense) {
  spec::Optimizer options = adamw_options();
  options.beta1 = 1.0;
  EXPECT_THROW(Trained{options}, UserError);
  options = sgd_options(true);
  options.momentum = 0.0;
  EXPECT_THROW(Trained{options}, UserError);
}

TEST(Optimizer, updates_the_master_and_rounds_it_into_the_model) {
  Trained net(adamw_options(), torch::kBFloat16);
  // Steps far below bf16's resolution: only the master can add them up.
  net.shard().master().fill_(1.0f);
  net.model->adopt_master();
  for (int step = 0; step < 100; ++step) {
    net.shard().gradient().fill_(1.0f);
    net.optimizer->step(1e-4, 1.0);
  }
  EXPECT_LT(net.shard().master().max().item<float>(), 0.992f);
  EXPECT_TRUE(torch::equal(net.shard().weights(), net.shard().master().to(torch::kBFloat16)));
  EXPECT_EQ(net.weights().first.data_ptr(), net.shard().weights().data_ptr());
}

}  // namespace
}  // namespace lockstep::engine
