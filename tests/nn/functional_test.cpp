// The fused functions against the plain formulas of libtorch, values and gradients, in fp64 (and fp32 where said).
#include "lockstep/nn/functional.h"

#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <functional>
#include <vector>

#include "lockstep/base/error.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;
using Function = std::function<Tensor(const std::vector<Tensor>&)>;

Tensor draw(std::vector<std::int64_t> shape, const char* name, torch::Dtype dtype = torch::kDouble) {
  Tensor tensor = torch::empty(shape, torch::dtype(dtype));
  fill_normal(tensor, 0.0, 1.0, stream_key(7, name));
  return tensor;
}

// Sum of the output against fixed weights, so that every output element has its own gradient.
std::vector<Tensor> gradients(const Function& function, const std::vector<Tensor>& inputs) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) leaves.push_back(input.detach().clone().requires_grad_(true));
  const Tensor out = function(leaves);
  const Tensor weights = draw(out.sizes().vec(), "weights", out.scalar_type());
  std::vector<Tensor> result = torch::autograd::grad({(out * weights).sum()}, leaves);
  result.push_back(out.detach());
  return result;
}

double worst_difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const double scale = b[i].abs().max().item<double>();
    worst = std::max(worst, (a[i] - b[i]).abs().max().item<double>() / (scale > 0 ? scale : 1.0));
  }
  return worst;
}

void expect_equal(const Function& ours, const Function& reference, const std::vector<Tensor>& inputs,
                  double tolerance = 1e-12) {
  EXPECT_LT(worst_difference(gradients(ours, inputs), gradients(reference, inputs)), tolerance);
}

// Central differences along one random direction per input: catches an error that both formulas share.
void expect_true_gradient(const Function& function, const std::vector<Tensor>& inputs) {
  const auto value = [&](const std::vector<Tensor>& at) {
    const Tensor out = function(at);
    return (out * draw(out.sizes().vec(), "weights")).sum().item<double>();
  };
  const std::vector<Tensor> analytic = gradients(function, inputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const Tensor direction = draw(inputs[i].sizes().vec(), "direction");
    std::vector<Tensor> ahead = inputs, behind = inputs;
    ahead[i] = inputs[i] + 1e-5 * direction;
    behind[i] = inputs[i] - 1e-5 * direction;
    const double numeric = (value(ahead) - value(behind)) / 2e-5;
    const double expected = (analytic[i] * direction).sum().item<double>();
    EXPECT_NEAR(numeric, expected, 1e-6 * std::max(1.0, std::abs(expected))) << "input " << i;
  }
}

Function gelu_reference() {
  return [](const std::vector<Tensor>& in) { return at::gelu(in[0] + in[1], "tanh"); };
}

TEST(BiasGelu, equals_libtorch_in_fp64) {
  const std::vector<Tensor> in{3 * draw({5, 7, 33}, "x"), draw({33}, "b")};
  const Function ours = [](const std::vector<Tensor>& v) { return bias_gelu(v[0], v[1]); };
  expect_equal(ours, gelu_reference(), in);
  expect_true_gradient(ours, in);
}

TEST(BiasGelu, equals_libtorch_to_fp32_round_off_over_the_whole_range) {
  const Tensor x = torch::linspace(-30, 30, 4099, torch::kFloat).view({1, -1});
  const Tensor ours = bias_gelu(x, Tensor());
  const Tensor exact = at::gelu(x.to(torch::kDouble), "tanh");
  EXPECT_LT((ours - exact).abs().max().item<double>(), 2e-6);
  const Tensor relative = ((ours - exact) / exact).abs().masked_select(x.abs() < 4);
  EXPECT_LT(relative.max().item<double>(), 1e-5);
}

TEST(BiasGelu, passes_nan_on) {
  Tensor x = torch::zeros({1, 40});
  x[0][17] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(bias_gelu(x, Tensor()).isnan().sum().item<int>(), 1);
}

TEST(Swiglu, equals_libtorch_in_fp64) {
  const std::vector<Tensor> in{draw({3, 29}, "gate"), draw({3, 29}, "up")};
  const Function ours = [](const std::vector<Tensor>& v) { return swiglu(v[0], v[1]); };
  expect_equal(
      ours, [](const std::vector<Tensor>& v) { return at::silu(v[0]) * v[1]; }, in);
  expect_true_gradient(ours, in);
}

TEST(LinearResidual, equals_libtorch_in_both_layouts) {
  for (const auto layout : {WeightLayout::kInOut, WeightLayout::kOutIn}) {
    const bool in_out = layout == WeightLayout::kInOut;
    const std::vector<Tensor> in{draw({2, 3, 6}, "r"), draw({2, 3, 5}, "x"),
                                 in_out ? draw({5, 6}, "w") : draw({6, 5}, "w"), draw({6}, "b")};
    expect_equal([&](const std::vector<Tensor>& v) { return linear_residual(v[0], v[1], v[2], v[3], layout); },
                 [&](const std::vector<Tensor>& v) { return v[0] + at::matmul(v[1], in_out ? v[2] : v[2].t()) + v[3]; },
                 in);
  }
}

TEST(GeluMlp, equals_libtorch_in_both_layouts) {
  for (const auto layout : {WeightLayout::kInOut, WeightLayout::kOutIn}) {
    const auto matrix = [&](const Tensor& w) { return layout == WeightLayout::kInOut ? w : w.t(); };
    const std::vector<Tensor> in{draw({2, 9, 6}, "r"),
                                 draw({2, 9, 6}, "x"),
                                 matrix(draw({6, 11}, "w1")).contiguous(),
                                 draw({11}, "b1"),
                                 matrix(draw({11, 6}, "w2")).contiguous(),
                                 draw({6}, "b2")};
    expect_equal([&](const std::vector<Tensor>& v) { return gelu_mlp(v[0], v[1], v[2], v[3], v[4], v[5], layout); },
                 [&](const std::vector<Tensor>& v) {
                   const Tensor inner = at::gelu(at::matmul(v[1], matrix(v[2])) + v[3], "tanh");
                   return v[0] + at::matmul(inner, matrix(v[4])) + v[5];
                 },
                 in);
  }
}

TEST(SwigluMlp, equals_libtorch) {
  const std::vector<Tensor> in{draw({2, 3, 6}, "r"), draw({2, 3, 6}, "x"), draw({9, 6}, "g"), draw({9, 6}, "u"),
                               draw({6, 9}, "d")};
  expect_equal([](const std::vector<Tensor>& v) { return swiglu_mlp(v[0], v[1], v[2], v[3], v[4]); },
               [](const std::vector<Tensor>& v) {
                 return v[0] + at::matmul(at::silu(at::matmul(v[1], v[2].t())) * at::matmul(v[1], v[3].t()), v[4].t());
               },
               in);
}

TEST(RmsNorm, equals_the_formula) {
  const std::vector<Tensor> in{draw({4, 5, 37}, "x"), draw({37}, "w")};
  const Function ours = [](const std::vector<Tensor>& v) { return rms_norm(v[0], v[1], 1e-5); };
  expect_equal(
      ours, [](const std::vector<Tensor>& v) { return v[1] * v[0] * at::rsqrt(v[0].square().mean({-1}, true) + 1e-5); },
      in);
  expect_true_gradient(ours, in);
}

TEST(Rope, turns_pairs_half_a_head_apart) {
  const RopeTables tables = rope_tables(6, 8, 10000.0, {}, torch::dtype(torch::kDouble));
  const std::vector<Tensor> in{draw({2, 6, 3, 8}, "x")};
  const Function reference = [&](const std::vector<Tensor>& v) {
    const Tensor cos = at::cat({tables.cos, tables.cos}, -1).unsqueeze(1);
    const Tensor sin = at::cat({tables.sin, tables.sin}, -1).unsqueeze(1);
    const auto halves = v[0].chunk(2, -1);
    return v[0] * cos + at::cat({-halves[1], halves[0]}, -1) * sin;
  };
  expect_equal([&](const std::vector<Tensor>& v) { return rope(v[0], tables.cos, tables.sin); }, reference, in);
}

Tensor cross_entropy_reference(const std::vector<Tensor>& v, const Tensor& target) {
  const Tensor logits = at::matmul(v[0], v[1].t()) + v[2];
  return at::nll_loss_nd(at::log_softmax(logits, -1), target, {}, at::Reduction::Sum, -100);
}

TEST(CrossEntropy, equals_libtorch_for_any_chunk) {
  const std::vector<Tensor> in{draw({70, 6}, "x"), draw({11, 6}, "w"), draw({11}, "b")};
  Tensor target = torch::arange(70).remainder(11);
  target.slice(0, 3, 9).fill_(-100);
  for (const std::int64_t chunk : {0, 1, 33, 70}) {
    expect_equal(
        [&](const std::vector<Tensor>& v) {
          return linear_cross_entropy(v[0], v[1], v[2], target, false, chunk).loss_sum;
        },
        [&](const std::vector<Tensor>& v) { return cross_entropy_reference(v, target); }, in);
  }
}

TEST(CrossEntropy, counts_targets_and_hits) {
  const Tensor x = torch::eye(4, torch::kFloat);
  const Tensor weight = 5 * torch::eye(4, torch::kFloat);
  const Tensor target = torch::tensor({0, 1, 3, -100}, torch::kLong);
  const CrossEntropy result = linear_cross_entropy(x, weight, Tensor(), target, true);
  EXPECT_EQ(result.count, 3);
  EXPECT_EQ(result.correct, 2);
}

TEST(CrossEntropy, of_ignored_rows_only_is_zero_with_zero_gradients) {
  const Tensor x = draw({4, 3}, "x").requires_grad_(true);
  const CrossEntropy result =
      linear_cross_entropy(x, draw({5, 3}, "w"), Tensor(), torch::full({4}, -100, torch::kLong), false);
  result.loss_sum.backward();
  EXPECT_EQ(result.loss_sum.item<double>(), 0.0);
  EXPECT_EQ(x.grad().abs().max().item<double>(), 0.0);
}

TEST(CrossEntropy, refuses_a_target_outside_the_classes) {
  const auto loss_of = [](std::int64_t target) {
    linear_cross_entropy(torch::ones({1, 3}), torch::ones({5, 3}), Tensor(), torch::full({1}, target, torch::kLong),
                         false);
  };
  EXPECT_THROW(loss_of(5), UserError);
  EXPECT_THROW(loss_of(-1), UserError);
}

}  // namespace
}  // namespace lockstep::nn
