#include "lockstep/nn/random.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "lockstep/nn/functional.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

TEST(Philox, gives_the_published_words) {  // known answers of Random123 (philox4x32, 10 rounds)
  EXPECT_EQ(philox({0, 0, 0, 0}, {0, 0}), (PhiloxCounter{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox({0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu}, {0xffffffffu, 0xffffffffu}),
            (PhiloxCounter{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u}),
            (PhiloxCounter{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

Tensor normal(std::int64_t count, torch::Dtype dtype, std::uint64_t seed = 1, const char* name = "w") {
  Tensor tensor = torch::empty({count}, torch::dtype(dtype));
  fill_normal(tensor, 0.0, 1.0, stream_key(seed, name));
  return tensor;
}

TEST(FillNormal, has_the_moments_of_a_normal) {
  const Tensor x = normal(1000003, torch::kDouble);
  EXPECT_NEAR(x.mean().item<double>(), 0.0, 0.004);
  EXPECT_NEAR(x.var().item<double>(), 1.0, 0.006);
  EXPECT_NEAR(x.pow(4).mean().item<double>(), 3.0, 0.05);
  EXPECT_NEAR((x.slice(0, 0, 1000000, 2) * x.slice(0, 1, 1000001, 2)).mean().item<double>(), 0.0, 0.006);
}

TEST(FillUniform, fills_its_interval_evenly) {
  Tensor x = torch::empty({400001}, torch::kFloat);
  fill_uniform(x, -2.0, 6.0, stream_key(1, "u"));
  EXPECT_GE(x.min().item<double>(), -2.0);
  EXPECT_LE(x.max().item<double>(), 6.0);
  EXPECT_NEAR(x.mean().item<double>(), 2.0, 0.02);
  EXPECT_NEAR(x.var().item<double>(), 64.0 / 12.0, 0.05);
}

TEST(FillNormal, rounds_the_same_draws_to_every_dtype) {
  const Tensor exact = normal(1001, torch::kDouble);
  EXPECT_TRUE(normal(1001, torch::kFloat).equal(exact.to(torch::kFloat)));
  EXPECT_TRUE(normal(1001, torch::kBFloat16).equal(exact.to(torch::kBFloat16)));
}

TEST(FillNormal, depends_on_seed_and_name_but_not_on_length_or_strides) {
  EXPECT_TRUE(normal(1001, torch::kDouble).slice(0, 0, 7).equal(normal(7, torch::kDouble)));
  EXPECT_FALSE(normal(7, torch::kDouble, 1).equal(normal(7, torch::kDouble, 2)));
  EXPECT_FALSE(normal(7, torch::kDouble, 1, "w").equal(normal(7, torch::kDouble, 1, "v")));
  Tensor transposed = torch::empty({4, 6}, torch::kDouble).t();
  fill_normal(transposed, 0.0, 1.0, stream_key(1, "w"));
  EXPECT_TRUE(transposed.contiguous().view({24}).equal(normal(24, torch::kDouble)));
}

TEST(Dropout, drops_its_share_and_keeps_the_mean) {
  const Tensor y = dropout(torch::ones({50, 4001}), 0.25, {1, 2, 0, 3});
  EXPECT_NEAR((y == 0).to(torch::kFloat).mean().item<double>(), 0.25, 0.005);
  EXPECT_NEAR(y.mean().item<double>(), 1.0, 0.01);
}

TEST(Dropout, does_not_depend_on_how_a_batch_is_split) {
  const Tensor x = torch::ones({8, 5, 13});
  const Tensor whole = dropout(x, 0.5, {1, 2, 16, 3});
  for (std::int64_t first = 0; first < 8; first += 2) {
    const Tensor part = dropout(x.slice(0, first, first + 2), 0.5, {1, 2, 16 + first, 3});
    EXPECT_TRUE(part.equal(whole.slice(0, first, first + 2)));
  }
}

TEST(Dropout, differs_by_seed_step_layer_and_sample) {
  const auto mask = [](DropoutSite site) { return dropout(torch::ones({1, 64}), 0.5, site); };
  const Tensor base = mask({1, 2, 3, 4});
  EXPECT_FALSE(base.equal(mask({9, 2, 3, 4})));
  EXPECT_FALSE(base.equal(mask({1, 9, 3, 4})));
  EXPECT_FALSE(base.equal(mask({1, 2, 9, 4})));
  EXPECT_FALSE(base.equal(mask({1, 2, 3, 9})));
}

TEST(Dropout, gives_gradients_the_mask_of_forward) {
  const Tensor x = torch::ones({3, 50}).requires_grad_(true);
  const Tensor y = dropout(x, 0.5, {1, 2, 3, 4});
  y.sum().backward();
  EXPECT_TRUE(x.grad().equal(y.detach()));
}

}  // namespace
}  // namespace lockstep::nn
