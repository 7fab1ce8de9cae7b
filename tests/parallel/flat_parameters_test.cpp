#include "lockstep/parallel/flat_parameters.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "tests/parallel/ranks.h"

namespace lockstep::parallel {
namespace {

torch::Tensor loss_of(TinyNet& net, std::int64_t seed) {
  return net.forward(random_tensor({4, 5}, seed, net.a.scalar_type())).square().sum();
}

TEST(FlatParameters, keep_order_values_and_alignment) {
  auto net = std::make_shared<TinyNet>(9, torch::kFloat32);
  const torch::Tensor before = net->shared.detach().clone();
  const FlatParameters flat(net);
  std::vector<std::string> names;
  for (const ParameterRange& range : flat.ranges()) {
    names.push_back(range.name);
    EXPECT_EQ(range.offset * 4 % 64, 0) << range.name;
  }
  EXPECT_EQ(names, (std::vector<std::string>{"a", "a_bias", "shared", "unused", "b", "b_bias"}));
  EXPECT_EQ(flat.parameter_count(), 45 + 9 + 81 + 21 + 18 + 2);
  EXPECT_TRUE(torch::equal(net->shared, before));
  EXPECT_EQ(net->shared.data_ptr<float>(), flat.values().data_ptr<float>() + flat.ranges()[2].offset);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(flat.values().data_ptr()) % 64, 0u);
}

TEST(FlatParameters, round_the_length_as_asked) {
  FlatOptions options;
  options.total_multiple = 1000;
  const FlatParameters flat(std::make_shared<TinyNet>(9, torch::kFloat32), options);
  EXPECT_EQ(flat.length() % 1000, 0);
}

TEST(FlatParameters, collect_the_gradients_that_autograd_computes) {
  TinyNet plain(9, torch::kFloat64);
  loss_of(plain, 11).backward();
  loss_of(plain, 12).backward();
  auto net = std::make_shared<TinyNet>(9, torch::kFloat64);
  FlatParameters flat(net);
  loss_of(*net, 11).backward();
  loss_of(*net, 12).backward();
  const TensorMap gradients = flat.views(flat.gradients());
  for (const auto& item : plain.named_parameters()) {
    if (item.key() == "unused") continue;
    EXPECT_TRUE(torch::equal(gradients.at(item.key()), item.value().grad())) << item.key();
  }
  EXPECT_EQ(gradients.at("unused").abs().sum().item<double>(), 0.0);
  flat.zero_gradients();
  EXPECT_EQ(net->shared.grad().abs().sum().item<double>(), 0.0);
}

TEST(FlatParameters, survive_gradients_that_somebody_dropped) {
  auto net = std::make_shared<TinyNet>(9, torch::kFloat64);
  FlatParameters flat(net);
  loss_of(*net, 11).backward();
  const torch::Tensor once = flat.gradients().clone();
  for (torch::Tensor& parameter : net->parameters()) parameter.mutable_grad() = torch::Tensor();
  flat.zero_gradients();
  loss_of(*net, 11).backward();
  EXPECT_TRUE(torch::equal(flat.gradients(), once));
}

TEST(FlatParameters, hold_a_parameter_with_two_names_once) {
  struct Tied : torch::nn::Module {
    Tied() {
      first = register_parameter("first", torch::ones({4, 4}));
      second = register_parameter("second", first);
    }
    torch::Tensor first, second;
  };
  auto net = std::make_shared<Tied>();
  const FlatParameters flat(net);
  ASSERT_EQ(flat.ranges().size(), 1u);
  EXPECT_EQ(flat.ranges()[0].name, "first");
  (net->first.sum() + 2 * net->second.sum()).backward();
  EXPECT_TRUE(torch::equal(flat.view(flat.gradients(), 0), torch::full({4, 4}, 3.0)));
}

TEST(FlatParameters, call_the_hook_once_per_backward_after_all_uses_were_summed) {
  auto net = std::make_shared<TinyNet>(9, torch::kFloat64);
  FlatParameters flat(net);
  std::vector<int> calls(flat.ranges().size(), 0);
  torch::Tensor seen;
  flat.set_gradient_hook([&](std::size_t index) {
    ++calls[index];
    if (index == 2) seen = flat.view(flat.gradients(), 2).clone();
  });
  loss_of(*net, 11).backward();
  EXPECT_EQ(calls, (std::vector<int>{1, 1, 1, 0, 1, 1}));
  EXPECT_TRUE(torch::equal(seen, flat.view(flat.gradients(), 2)));
}

TEST(FlatParameters, accumulate_low_precision_gradients_in_fp32) {
  struct One : torch::nn::Module {
    One() { w = register_parameter("w", torch::ones({3}, torch::kBFloat16)); }
    torch::Tensor w;
  };
  auto net = std::make_shared<One>();
  FlatOptions options;
  options.gradient_dtype = torch::kFloat32;
  options.master_dtype = torch::kFloat32;
  FlatParameters flat(net, options);
  EXPECT_TRUE(flat.has_master());
  EXPECT_EQ(flat.master().scalar_type(), torch::kFloat32);
  // In bf16, 256 + 1 is 256 again; the sum of 300 ones shows where it was added up.
  for (int i = 0; i < 300; ++i) net->w.sum().backward();
  EXPECT_TRUE(torch::equal(flat.view(flat.gradients(), 0), torch::full({3}, 300.0f)));
  EXPECT_FALSE(net->w.grad().defined());
}

TEST(FlatParameters, name_the_ranges_that_decay) {
  auto net = std::make_shared<TinyNet>(16, torch::kFloat32);  // a [5, 16], a_bias [16], shared, unused, b, b_bias [2]
  const FlatParameters flat(net);
  const auto ranges = flat.decay_ranges(DecayPolicy::kMatricesOnly);
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].begin, 0);
  EXPECT_EQ(ranges[0].end, 80);
  EXPECT_EQ(ranges[1].begin, flat.ranges()[2].offset);
  EXPECT_EQ(ranges[1].end, flat.ranges()[4].offset + 32);
  EXPECT_TRUE(flat.decay_ranges(DecayPolicy::kNone).empty());
  EXPECT_EQ(flat.decay_ranges(DecayPolicy::kAll).front().end, flat.length());
}

TEST(FlatParameters, load_what_views_gave_and_refuse_what_does_not_fit) {
  FlatParameters flat(std::make_shared<TinyNet>(9, torch::kFloat32));
  TensorMap saved;
  for (const auto& [name, view] : flat.views(flat.values(), "weights.")) saved.emplace(name, view.clone());
  const torch::Tensor before = flat.values().clone();
  torch::Tensor target = torch::zeros_like(flat.values());
  flat.load(target, saved, "weights.");
  EXPECT_TRUE(torch::equal(target, before));
  saved["weights.shared"] = torch::zeros({9, 8});
  EXPECT_THROW(flat.load(target, saved, "weights."), UserError);
  EXPECT_TRUE(torch::equal(target, before)) << "a refused load must not change anything";
  saved.erase("weights.shared");
  EXPECT_THROW(flat.load(target, saved, "weights."), UserError);
}

TEST(FlatParameters, refuse_mixed_dtypes_and_models_without_parameters) {
  struct Mixed : torch::nn::Module {
    Mixed() {
      register_parameter("x", torch::ones({2}));
      register_parameter("y", torch::ones({2}, torch::kFloat64));
    }
  };
  EXPECT_THROW(FlatParameters(std::make_shared<Mixed>()), UserError);
  struct Empty : torch::nn::Module {};
  EXPECT_THROW(FlatParameters(std::make_shared<Empty>()), UserError);
}

TEST(FlatParameters, leave_a_working_module_behind) {
  auto net = std::make_shared<TinyNet>(9, torch::kFloat64);
  { const FlatParameters flat(net); }
  net->shared.mutable_grad() = torch::Tensor();
  loss_of(*net, 11).backward();
  EXPECT_GT(net->shared.grad().abs().sum().item<double>(), 0.0);
}

}  // namespace
}  // namespace lockstep::parallel
