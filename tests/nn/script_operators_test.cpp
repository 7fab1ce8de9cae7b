// Operators that modules of newer torchs call: what they give is what torch.nn.functional documents, whichever libtorch
// computes it.
#include "lockstep/nn/script_operators.h"

#include <gtest/gtest.h>
#include <torch/script.h>

#include <cmath>
#include <string>
#include <vector>

namespace lockstep::nn {
namespace {

using torch::Tensor;

// `expression` of x, y, z, compiled as TorchScript.
Tensor call(const std::string& expression, std::vector<torch::jit::IValue> inputs) {
  register_missing_operators();
  torch::jit::Module module("__torch__.M");
  module.define("def forward(self, x, y, z):\n  return " + expression + "\n");
  inputs.resize(3, Tensor(torch::zeros({1})));
  return module.forward(inputs).toTensor();
}

Tensor drawn(std::vector<std::int64_t> sizes, std::uint64_t seed) {
  return torch::randn(sizes, at::detail::createCPUGenerator(seed), torch::kDouble).requires_grad_(true);
}

double difference(const Tensor& one, const Tensor& other) { return (one - other).abs().max().item<double>(); }

// Values, and the gradients that their squares send back to the inputs.
void expect_same(const Tensor& ours, const Tensor& wanted, const std::vector<Tensor>& inputs) {
  EXPECT_LT(difference(ours, wanted), 1e-12);
  const auto got = torch::autograd::grad({ours.square().sum()}, inputs, {}, true);  // inputs may share a graph
  const auto expected = torch::autograd::grad({wanted.square().sum()}, inputs, {}, true);
  for (std::size_t i = 0; i < inputs.size(); ++i) EXPECT_LT(difference(got[i], expected[i]), 1e-11) << i;
}

TEST(ScriptOperators, RmsNormDividesByTheRootMeanSquareOverTheNormalisedDims) {
  const Tensor x = drawn({3, 4, 5}, 1), weight = drawn({4, 5}, 2);
  const Tensor mean = x.square().mean(std::vector<std::int64_t>{-2, -1}, true);
  expect_same(call("torch.rms_norm(x, [4, 5], y, 0.5)", {x, weight}), weight * x / (mean + 0.5).sqrt(), {x, weight});
  expect_same(call("torch.rms_norm(x, [4, 5])", {x}), x / (mean + std::numeric_limits<double>::epsilon()).sqrt(), {x});
}

TEST(ScriptOperators, AttentionIsTheSoftmaxOfScaledProducts) {
  const Tensor q = drawn({2, 3, 4, 8}, 1), k = drawn({2, 3, 6, 8}, 2), v = drawn({2, 3, 6, 5}, 3);
  const Tensor scores = torch::matmul(q, k.transpose(-2, -1));
  const auto attend = [&](const Tensor& s) { return torch::matmul(torch::softmax(s, -1), v); };
  expect_same(call("torch.scaled_dot_product_attention(x, y, z)", {q, k, v}), attend(scores / std::sqrt(8.0)),
              {q, k, v});
  expect_same(call("torch.scaled_dot_product_attention(x, y, z, scale=0.25)", {q, k, v}), attend(scores * 0.25),
              {q, k, v});
}

TEST(ScriptOperators, CausalAttentionSeesNoLaterRow) {
  const Tensor q = drawn({2, 4, 8}, 1), k = drawn({2, 4, 8}, 2), v = drawn({2, 4, 8}, 3);
  const Tensor later = torch::ones({4, 4}, torch::kBool).triu(1);
  const Tensor scores = torch::matmul(q, k.transpose(-2, -1)) / std::sqrt(8.0);
  const Tensor wanted = torch::matmul(torch::softmax(scores.masked_fill(later, -1e300), -1), v);
  expect_same(call("torch.scaled_dot_product_attention(x, y, z, None, 0.0, True)", {q, k, v}), wanted, {q, k, v});
}

TEST(ScriptOperators, ARowThatSeesNothingGivesZeroAndSendsNoGradient) {
  const Tensor q = drawn({3, 8}, 1), k = drawn({3, 8}, 2);
  const Tensor seen = torch::tensor({{true, false, false}, {false, false, false}, {true, true, true}});
  const Tensor result = call("torch.scaled_dot_product_attention(x, y, y, z)", {q.unsqueeze(0), k.unsqueeze(0), seen});
  EXPECT_LT(difference(result[0][0], k[0]), 1e-12);
  EXPECT_EQ(result[0][1].abs().sum().item<double>(), 0.0);
  const auto gradients = torch::autograd::grad({result.square().sum()}, {q, k});
  EXPECT_TRUE(torch::isfinite(gradients[1]).all().item<bool>());
  EXPECT_EQ(gradients[0][1].abs().sum().item<double>(), 0.0);
  EXPECT_GT(gradients[0][2].abs().sum().item<double>(), 0.0);
}

TEST(ScriptOperators, SeveralHeadsOfQueriesMayShareAHeadOfKeys) {
  const Tensor q = drawn({1, 4, 3, 8}, 1), k = drawn({1, 2, 3, 8}, 2), v = drawn({1, 2, 3, 8}, 3);
  const auto twice = [](const Tensor& heads) { return torch::stack({heads, heads}, 2).flatten(1, 2); };
  const Tensor scores = torch::matmul(q, twice(k).transpose(-2, -1)) / std::sqrt(8.0);
  expect_same(call("torch.scaled_dot_product_attention(x, y, z, enable_gqa=True)", {q, k, v}),
              torch::matmul(torch::softmax(scores, -1), twice(v)), {q, k, v});
}

TEST(ScriptOperators, DropoutOfAttentionDrawsFromTheCurrentGenerator) {
  const Tensor q = drawn({1, 1, 16, 8}, 1);
  const std::string dropped = "torch.scaled_dot_product_attention(x, x, x, None, 0.5)";
  torch::manual_seed(1);
  const Tensor first = call(dropped, {q}), second = call(dropped, {q});
  torch::manual_seed(1);
  EXPECT_EQ(difference(call(dropped, {q}), first), 0.0);
  EXPECT_GT(difference(first, second), 1e-3);
}

}  // namespace
}  // namespace lockstep::nn
