// What a GPU computes through libtorch's own operators equals what the CPU's kernels compute. Without a GPU there is
// nothing to compare.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "lockstep/kernels/fused_optimizer.h"
#include "lockstep/nn/functional.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/torch_compat.h"
#include "tests/nn/small_models.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;
using Function = std::function<Tensor(const std::vector<Tensor>&)>;

Tensor draw(std::vector<std::int64_t> shape, const char* name) {
  Tensor tensor = torch::empty(shape, torch::dtype(torch::kFloat));
  fill_normal(tensor, 0.0, 1.0, stream_key(7, name));
  return tensor;
}

// Values and gradients of sum(function x fixed weights), on the CPU again.
std::vector<Tensor> results(const Function& function, const std::vector<Tensor>& inputs, torch::Device device) {
  std::vector<Tensor> leaves;
  for (const Tensor& input : inputs) leaves.push_back(input.to(device).detach().clone().requires_grad_(true));
  const Tensor out = function(leaves);
  const Tensor weights = draw(out.sizes().vec(), "weights").to(device);
  std::vector<Tensor> tensors = torch::autograd::grad({(out * weights).sum()}, leaves);
  tensors.push_back(out.detach());
  for (Tensor& tensor : tensors) tensor = tensor.cpu();
  return tensors;
}

void expect_close(const Tensor& a, const Tensor& b, double tolerance = 1e-4) {
  const double scale = std::max(1e-6, b.abs().max().item<double>());
  EXPECT_LT((a - b).abs().max().item<double>() / scale, tolerance);
}

class OnGpu : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!compat::has_cuda()) GTEST_SKIP() << "no GPU here";
  }

  void expect_same(const Function& function, const std::vector<Tensor>& inputs) {
    const std::vector<Tensor> gpu = results(function, inputs, gpu_), cpu = results(function, inputs, torch::kCPU);
    for (std::size_t i = 0; i < cpu.size(); ++i) expect_close(gpu[i], cpu[i]);
  }

  torch::Device gpu_{torch::kCUDA, 0};
};

TEST_F(OnGpu, norms_and_activations_are_the_same) {
  expect_same([](const std::vector<Tensor>& t) { return rms_norm(t[0], t[1], 1e-5); },
              {draw({3, 40, 64}, "x"), draw({64}, "w")});
  expect_same([](const std::vector<Tensor>& t) { return swiglu(t[0], t[1]); },
              {draw({3, 40, 64}, "gate"), draw({3, 40, 64}, "up")});
  expect_same([](const std::vector<Tensor>& t) { return bias_gelu(t[0], t[1]); },
              {draw({120, 64}, "x"), draw({64}, "b")});
}

TEST_F(OnGpu, the_loss_is_the_same_for_any_chunk_and_skips_what_is_ignored) {
  Tensor target = torch::arange(70).remainder(11);
  target.slice(0, 3, 9).fill_(-100);
  for (const std::int64_t chunk : {0, 33}) {
    expect_same(
        [&](const std::vector<Tensor>& t) {
          return linear_cross_entropy(t[0], t[1], t[2], target.to(t[0].device()), false, chunk).loss_sum;
        },
        {draw({70, 6}, "x"), draw({11, 6}, "w"), draw({11}, "b")});
  }
  const auto hits = [&](torch::Device device) {
    const auto on = [&](const Tensor& t) { return t.to(device); };
    return linear_cross_entropy(on(draw({70, 6}, "x")), on(draw({11, 6}, "w")), Tensor(), on(target), true).correct;
  };
  EXPECT_EQ(hits(gpu_), hits(torch::kCPU));
}

TEST_F(OnGpu, whole_models_have_the_same_loss_and_gradients) {
  for (const spec::Model& spec : {testing::small_gpt(), testing::small_llama()}) {
    const auto run = [&](torch::Device device) {
      const auto model = build_model(spec, {.dtype = torch::kFloat, .device = device, .seed = 3});
      const Tensor tokens = torch::arange(2 * spec.max_sequence).remainder(spec.vocab).view({2, -1}).to(device);
      model->loss(tokens, tokens, {.seed = 1, .step = 0, .first_index = 0, .training = true}).loss_sum.backward();
      std::vector<Tensor> gradients;
      for (const Tensor& parameter : model->parameters()) gradients.push_back(parameter.grad().cpu());
      return gradients;
    };
    const std::vector<Tensor> gpu = run(gpu_), cpu = run(torch::kCPU);
    ASSERT_EQ(gpu.size(), cpu.size());
    for (std::size_t i = 0; i < cpu.size(); ++i) expect_close(gpu[i], cpu[i], 1e-3);
  }
}

TEST_F(OnGpu, the_optimizer_and_the_norm_are_the_same) {
  constexpr std::int64_t kCount = 100'003;
  const auto arrays_on = [&](torch::Device device) {
    kernels::OptimizerArrays arrays;
    arrays.parameter = draw({kCount}, "p").to(device);
    arrays.gradient = draw({kCount}, "g").to(device);
    arrays.first = draw({kCount}, "m").to(device);
    arrays.second = draw({kCount}, "v").square().to(device);
    return arrays;
  };
  const kernels::OptimizerArrays gpu = arrays_on(gpu_), cpu = arrays_on(torch::kCPU);
  EXPECT_NEAR(kernels::squared_norm(gpu.gradient) / kernels::squared_norm(cpu.gradient), 1.0, 1e-9);
  const kernels::ElementRange decay[] = {{100, 50'000}};
  kernels::adamw(gpu, decay, {.step = 3, .gradient_factor = 0.5});
  kernels::adamw(cpu, decay, {.step = 3, .gradient_factor = 0.5});
  expect_close(gpu.parameter.cpu(), cpu.parameter, 1e-6);
  expect_close(gpu.second.cpu(), cpu.second, 1e-6);
}

}  // namespace
}  // namespace lockstep::nn
