#include "lockstep/kernels/fused_optimizer.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/kernels/flat_loops.h"

namespace lockstep::kernels {
namespace {

constexpr std::int64_t kCount = 2 * kBlockElements + 1237;  // several blocks, a ragged end
constexpr int kSteps = 50;

torch::Tensor normal(std::int64_t count, torch::ScalarType type, int seed) {
  torch::manual_seed(seed);
  return torch::randn({count}, torch::TensorOptions().dtype(torch::kFloat64)).to(type);
}

double relative_difference(const torch::Tensor& a, const torch::Tensor& b) {
  return (a.to(torch::kFloat64) - b.to(torch::kFloat64)).norm().item<double>() /
         b.to(torch::kFloat64).norm().item<double>();
}

// Ours and libtorch's optimizer over the same parameters and gradients; returns the relative difference of the weights.
// update(step) makes our step with ours.gradient.
template <class Update>
double difference_after_steps(OptimizerArrays& ours, const torch::Tensor& theirs, torch::optim::Optimizer& optimizer,
                              double factor, Update update) {
  for (int step = 1; step <= kSteps; ++step) {
    const torch::Tensor gradient = normal(kCount, ours.parameter.scalar_type(), 100 + step);
    theirs.mutable_grad() = gradient * factor;
    optimizer.step();
    ours.gradient = gradient;
    update(step);
  }
  return relative_difference(ours.parameter, theirs.detach());
}

double difference_to_libtorch_adamw(torch::ScalarType type, const AdamWStep& options, double factor) {
  OptimizerArrays ours{normal(kCount, type, 1), {}, torch::zeros({kCount}, type), torch::zeros({kCount}, type), {}};
  torch::Tensor theirs = ours.parameter.clone().set_requires_grad(true);
  torch::optim::AdamW optimizer({theirs}, torch::optim::AdamWOptions(options.learning_rate)
                                              .betas({options.beta1, options.beta2})
                                              .eps(options.epsilon)
                                              .weight_decay(options.weight_decay));
  return difference_after_steps(ours, theirs, optimizer, factor, [&](int step) {
    AdamWStep now = options;
    now.step = step;
    now.gradient_factor = factor;
    adamw(ours, std::vector<ElementRange>{{0, kCount}}, now);
  });
}

double difference_to_libtorch_sgd(torch::ScalarType type, const SgdStep& options, double factor) {
  OptimizerArrays ours{normal(kCount, type, 1), {}, {}, {}, {}};
  if (options.momentum > 0) ours.first = torch::zeros({kCount}, type);
  torch::Tensor theirs = ours.parameter.clone().set_requires_grad(true);
  torch::optim::SGD optimizer({theirs}, torch::optim::SGDOptions(options.learning_rate)
                                            .momentum(options.momentum)
                                            .nesterov(options.nesterov)
                                            .weight_decay(options.weight_decay));
  return difference_after_steps(ours, theirs, optimizer, factor, [&](int) {
    SgdStep now = options;
    now.gradient_factor = factor;
    sgd(ours, std::vector<ElementRange>{{0, kCount}}, now);
  });
}

TEST(AdamW, equals_libtorch_over_fifty_steps_in_fp64) {
  EXPECT_LT(difference_to_libtorch_adamw(torch::kFloat64, {3e-3, 0.9, 0.95, 1e-8, 0.1}, 1.0), 1e-14);
  EXPECT_LT(difference_to_libtorch_adamw(torch::kFloat64, {3e-3, 0.9, 0.999, 1e-6, 0.0}, 0.25), 1e-14);
}

TEST(AdamW, equals_libtorch_over_fifty_steps_in_fp32) {
  EXPECT_LT(difference_to_libtorch_adamw(torch::kFloat32, {3e-3, 0.9, 0.95, 1e-8, 0.1}, 1.0), 2e-6);
}

TEST(AdamW, comparison_with_libtorch_notices_a_wrong_constant) {
  // The tolerance above is tight enough: a bias correction that is one step off, or no decay, is far outside of it.
  const double coupled = difference_to_libtorch_adamw(torch::kFloat64, {3e-3, 0.9, 0.95, 1e-8, 0.1}, 1.0);
  OptimizerArrays a{normal(kCount, torch::kFloat64, 1),
                    normal(kCount, torch::kFloat64, 2),
                    torch::zeros({kCount}, torch::kFloat64),
                    torch::zeros({kCount}, torch::kFloat64),
                    {}};
  OptimizerArrays b{a.parameter.clone(), a.gradient, a.first.clone(), a.second.clone(), {}};
  adamw(a, {}, {.learning_rate = 3e-3, .step = 1});
  adamw(b, {}, {.learning_rate = 3e-3, .step = 2});
  EXPECT_GT(relative_difference(a.parameter, b.parameter), 1e6 * std::max(coupled, 1e-16));
}

TEST(Sgd, equals_libtorch_over_fifty_steps_in_fp64) {
  for (const double momentum : {0.0, 0.9}) {
    for (const bool nesterov : {false, true}) {
      if (nesterov && momentum == 0.0) continue;
      for (const double decay : {0.0, 0.05}) {
        const SgdStep options{1e-2, momentum, decay, nesterov};
        EXPECT_LT(difference_to_libtorch_sgd(torch::kFloat64, options, 0.5), 1e-14)
            << "momentum " << momentum << " nesterov " << nesterov << " decay " << decay;
      }
    }
  }
}

TEST(AdamW, decays_only_inside_the_ranges) {
  // With a zero gradient the only change is decay. Ranges start and end inside, on and across block borders.
  const std::vector<ElementRange> decay{
      {0, 5}, {100, kBlockElements}, {kBlockElements, kBlockElements + 1}, {kBlockElements + 7, kCount - 3}};
  OptimizerArrays arrays{torch::ones({kCount}, torch::kFloat64),
                         torch::zeros({kCount}, torch::kFloat64),
                         torch::zeros({kCount}, torch::kFloat64),
                         torch::zeros({kCount}, torch::kFloat64),
                         {}};
  adamw(arrays, decay, {.learning_rate = 0.5, .weight_decay = 0.5, .step = 1});
  torch::Tensor expected = torch::ones({kCount}, torch::kFloat64);
  for (const ElementRange& range : decay) expected.narrow(0, range.begin, range.end - range.begin).fill_(0.75);
  EXPECT_TRUE(torch::equal(arrays.parameter, expected));
}

TEST(Sgd, decays_only_inside_the_ranges) {
  const std::vector<ElementRange> decay{{3, kBlockElements + 9}};
  OptimizerArrays arrays{torch::ones({kCount}, torch::kFloat64), torch::zeros({kCount}, torch::kFloat64), {}, {}, {}};
  sgd(arrays, decay, {.learning_rate = 0.5, .weight_decay = 0.5});
  torch::Tensor expected = torch::ones({kCount}, torch::kFloat64);
  expected.narrow(0, 3, kBlockElements + 6).fill_(0.75);
  EXPECT_TRUE(torch::equal(arrays.parameter, expected));
}

TEST(AdamW, writes_the_low_precision_copy_as_libtorch_rounds) {
  for (const torch::ScalarType type : {torch::kBFloat16, torch::kHalf}) {
    OptimizerArrays arrays{normal(kCount, torch::kFloat32, 3), normal(kCount, torch::kFloat32, 4),
                           torch::zeros({kCount}), torch::zeros({kCount}), torch::zeros({kCount}, type)};
    adamw(arrays, {}, {.learning_rate = 1e-2, .step = 1});
    EXPECT_TRUE(torch::equal(arrays.copy, arrays.parameter.to(type))) << c10::toString(type);
  }
}

// Every exponent, mantissas around every rounding border, both signs, NaN and infinity.
std::vector<float> awkward_floats() {
  std::vector<float> values;
  for (std::uint32_t high = 0; high < 0x10000u; ++high) {
    for (const std::uint32_t low : {0x0000u, 0x0001u, 0x0fffu, 0x1000u, 0x1001u, 0x7fffu, 0x8000u, 0x8001u, 0xffffu}) {
      const std::uint32_t bits = (high << 16) | low;
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      values.push_back(value);
    }
  }
  return values;
}

TEST(Rounding, equals_libtorch_for_every_exponent_and_border) {
  const std::vector<float> values = awkward_floats();
  std::vector<std::uint16_t> bf16(values.size());
  std::vector<std::uint16_t> fp16(values.size());
  round_to_bf16(values.data(), bf16.data(), static_cast<std::int64_t>(values.size()));
  round_to_fp16(values.data(), fp16.data(), static_cast<std::int64_t>(values.size()));
  int wrong = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isnan(values[i])) {
      wrong += (bf16[i] & 0x7fffu) <= 0x7f80u || (fp16[i] & 0x7fffu) <= 0x7c00u;
    } else {
      wrong += bf16[i] != c10::BFloat16(values[i]).x || fp16[i] != c10::Half(values[i]).x;
    }
  }
  EXPECT_EQ(wrong, 0) << "of " << values.size();
}

TEST(SquaredNorm, equals_the_plain_sum) {
  for (const std::int64_t count : {std::int64_t{0}, std::int64_t{1}, std::int64_t{15}, std::int64_t{17}, kCount}) {
    const torch::Tensor x = normal(count, torch::kFloat64, 5);
    const double expected = x.square().sum().item<double>();
    EXPECT_NEAR(squared_norm(x), expected, 1e-12 * expected);
    const double single = x.to(torch::kFloat32).to(torch::kFloat64).square().sum().item<double>();
    EXPECT_NEAR(squared_norm(x.to(torch::kFloat32)), single, 1e-12 * single);
  }
}

TEST(SquaredNorm, shows_nan_and_infinity) {
  torch::Tensor x = torch::zeros({kCount});
  x[kCount - 1] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(squared_norm(x)));
  x[0] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(squared_norm(x)));
}

TEST(Kernels, give_the_same_bits_with_any_number_of_threads) {
  const int before = at::get_num_threads();
  const torch::Tensor x = normal(40 * kBlockElements + 11, torch::kFloat32, 6);
  std::vector<double> norms;
  std::vector<torch::Tensor> weights;
  for (const int threads : {1, 2, 3}) {
    at::set_num_threads(threads);
    norms.push_back(squared_norm(x));
    OptimizerArrays arrays{x.clone(), x * 0.5, torch::zeros_like(x), torch::zeros_like(x), {}};
    const std::vector<ElementRange> decay{{10, 20 * kBlockElements + 3}};
    for (int step = 1; step <= 3; ++step) adamw(arrays, decay, {.step = step});
    weights.push_back(arrays.parameter);
  }
  at::set_num_threads(before);
  for (std::size_t i = 1; i < norms.size(); ++i) {
    EXPECT_EQ(norms[i], norms[0]);
    EXPECT_TRUE(torch::equal(weights[i], weights[0]));
  }
}

TEST(Kernels, refuse_arrays_that_do_not_fit_together) {
  const torch::Tensor x = torch::zeros({8});
  EXPECT_THROW(adamw({x, torch::zeros({7}), x, x, {}}, {}, {}), InternalError);
  EXPECT_THROW(adamw({x, x.to(torch::kFloat64), x, x, {}}, {}, {}), InternalError);
  EXPECT_THROW(adamw({x, x, x, {}, {}}, {}, {}), InternalError);
}

}  // namespace
}  // namespace lockstep::kernels
