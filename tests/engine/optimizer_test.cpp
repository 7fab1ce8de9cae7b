#include "lockstep/engine/optimizer.h"

#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include "lockstep/base/error.h"
#include "lockstep/engine/grad_clip.h"
#include "lockstep/engine/precision.h"

namespace lockstep::engine {
namespace {

using parallel::DecayPolicy;
using parallel::FlatParameters;
using parallel::TensorMap;

constexpr int kSteps = 50;

// Two matrices, a bias and a scalar: odd sizes, so that there is padding between them.
struct Net : torch::nn::Module {
  explicit Net(torch::ScalarType type = torch::kFloat64) {
    torch::manual_seed(3);
    const auto make = [&](std::vector<std::int64_t> sizes) { return torch::randn(sizes, torch::kFloat64).to(type); };
    first = register_parameter("first", make({7, 13}));
    bias = register_parameter("bias", make({13}));
    second = register_parameter("second", make({13, 3}));
    gain = register_parameter("gain", make({}));
  }
  torch::Tensor loss(int step) {
    torch::manual_seed(100 + step);
    const torch::Tensor x = torch::randn({16, 7}, torch::kFloat64).to(first.scalar_type());
    return ((torch::tanh(x.mm(first) + bias)).mm(second) * gain - 1).square().mean();
  }
  torch::Tensor first, bias, second, gain;
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

void expect_training_equals(const spec::Optimizer& options, DecayPolicy decay, torch::optim::Optimizer& reference,
                            Net& reference_net) {
  constexpr double kClip = 0.5;
  auto net = std::make_shared<Net>();
  FlatParameters flat(net);
  const auto optimizer = make_optimizer(options, flat, decay);
  for (int step = 0; step < kSteps; ++step) {
    reference.zero_grad();
    reference_net.loss(step).backward();
    clip_reference(reference_net.parameters(), kClip);
    reference.step();
    flat.zero_gradients();
    net->loss(step).backward();
    optimizer->step(options.learning_rate, gradient_norm(flat, kClip).factor);
  }
  EXPECT_EQ(optimizer->steps(), kSteps);
  const auto expected = reference_net.named_parameters();
  for (const auto& item : net->named_parameters()) {
    const torch::Tensor difference = (item.value() - expected[item.key()]).detach().abs();
    EXPECT_LT(difference.max().item<double>(), 1e-13) << item.key();
  }
}

TEST(Optimizer, adamw_trains_as_libtorchs_over_fifty_steps) {
  Net net;
  torch::optim::AdamW reference(net.parameters(),
                                torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1));
  expect_training_equals(adamw_options(), DecayPolicy::kAll, reference, net);
}

TEST(Optimizer, adamw_without_decay_of_vectors_equals_two_parameter_groups) {
  Net net;
  const auto options = torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).eps(1e-8);
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<torch::Tensor>{net.first, net.second},
                      std::make_unique<torch::optim::AdamWOptions>(
                          torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.1)));
  groups.emplace_back(std::vector<torch::Tensor>{net.bias, net.gain},
                      std::make_unique<torch::optim::AdamWOptions>(
                          torch::optim::AdamWOptions(1e-2).betas({0.9, 0.95}).eps(1e-8).weight_decay(0.0)));
  torch::optim::AdamW reference(groups, options);
  expect_training_equals(adamw_options(), DecayPolicy::kMatricesOnly, reference, net);
}

TEST(Optimizer, sgd_trains_as_libtorchs_over_fifty_steps) {
  for (const bool nesterov : {false, true}) {
    Net net;
    torch::optim::SGD reference(net.parameters(),
                                torch::optim::SGDOptions(1e-2).momentum(0.9).weight_decay(1e-3).nesterov(nesterov));
    expect_training_equals(sgd_options(nesterov), DecayPolicy::kAll, reference, net);
  }
}

// Trains `steps` steps and returns the weights that the model computes with.
torch::Tensor train(Net& net, FlatParameters& flat, Optimizer& optimizer, int from, int to) {
  for (int step = from; step < to; ++step) {
    flat.zero_gradients();
    net.loss(step).backward();
    optimizer.step(1e-2);
  }
  return flat.values().clone();
}

TEST(Optimizer, continues_bit_for_bit_from_a_saved_state) {
  for (const spec::Optimizer& options : {adamw_options(), sgd_options(true)}) {
    auto net = std::make_shared<Net>(torch::kFloat32);
    FlatParameters flat(net);
    const auto optimizer = make_optimizer(options, flat);
    train(*net, flat, *optimizer, 0, 10);
    TensorMap state;
    for (const auto& [name, tensor] : optimizer->state()) state.emplace(name, tensor.clone());
    TensorMap weights;
    for (const auto& [name, tensor] : flat.views(flat.master())) weights.emplace(name, tensor.clone());
    const torch::Tensor expected = train(*net, flat, *optimizer, 10, 20);

    auto again = std::make_shared<Net>(torch::kFloat32);
    FlatParameters flat_again(again);
    torch::Tensor master = flat_again.master();
    flat_again.load(master, weights);
    const auto resumed = make_optimizer(options, flat_again);
    resumed->load_state(state);
    EXPECT_EQ(resumed->steps(), 10);
    EXPECT_TRUE(torch::equal(train(*again, flat_again, *resumed, 10, 20), expected));
  }
}

TEST(Optimizer, refuses_a_state_that_does_not_fit) {
  auto net = std::make_shared<Net>();
  FlatParameters flat(net);
  const auto optimizer = make_optimizer(adamw_options(), flat);
  TensorMap state = optimizer->state();
  EXPECT_EQ(state.size(), 1u + 2u * 4u);
  state["optimizer.exp_avg.bias"] = torch::zeros({2}, torch::kFloat64);
  EXPECT_THROW(optimizer->load_state(state), UserError);
  state = optimizer->state();
  state.erase("optimizer.step");
  EXPECT_THROW(optimizer->load_state(state), UserError);
  state = optimizer->state();
  state["optimizer.step"] = torch::full({}, -3, torch::kInt64);
  EXPECT_THROW(optimizer->load_state(state), UserError);
}

TEST(Optimizer, refuses_options_that_make_no_sense) {
  auto net = std::make_shared<Net>();
  FlatParameters flat(net);
  spec::Optimizer options = adamw_options();
  options.beta1 = 1.0;
  EXPECT_THROW(make_optimizer(options, flat), UserError);
  options = sgd_options(true);
  options.momentum = 0.0;
  EXPECT_THROW(make_optimizer(options, flat), UserError);
}

TEST(Optimizer, updates_the_master_and_rounds_it_into_the_model) {
  auto net = std::make_shared<Net>(torch::kBFloat16);
  const PrecisionPolicy policy = precision_policy(spec::Precision::kBf16, torch::kCPU);
  FlatParameters flat(net, policy.flat_options());
  const auto optimizer = make_optimizer(adamw_options(), flat);
  // Steps far below bf16's resolution: only the master can add them up.
  flat.master().fill_(1.0f);
  flat.copy_master_to_values();
  for (int step = 0; step < 100; ++step) {
    flat.gradients().fill_(1.0f);
    optimizer->step(1e-4);
  }
  EXPECT_LT(flat.master().max().item<float>(), 0.992f);
  EXPECT_TRUE(torch::equal(flat.values(), flat.master().to(torch::kBFloat16)));
  EXPECT_EQ(net->first.data_ptr(), flat.values().data_ptr());
}

}  // namespace
}  // namespace lockstep::engine
