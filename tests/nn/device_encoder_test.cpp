// The engine's own CUDA kernels inside models: losses and gradients of small models in bf16 on a GPU against fp32 on
// the CPU, masks that are the CPU's, fused attention whose backward uses the masks of its forward. Without a GPU there
// is nothing to compare.
#include <gtest/gtest.h>
#include <torch/autograd.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "lockstep/nn/attention.h"
#include "lockstep/nn/functional.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/torch_compat.h"
#include "tests/nn/small_models.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

Tensor draw(std::vector<std::int64_t> shape, const char* name) {
  Tensor tensor = torch::empty(shape, torch::dtype(torch::kFloat));
  fill_normal(tensor, 0.0, 1.0, stream_key(11, name));
  return tensor;
}

double distance(const Tensor& a, const Tensor& b) {
  const Tensor x = a.cpu().to(torch::kDouble), y = b.cpu().to(torch::kDouble);
  return (x - y).norm().item<double>() / std::max(1e-9, y.norm().item<double>());
}

struct Result {
  double loss = 0;
  std::vector<std::string> names;
  std::vector<Tensor> gradients;
};

struct Where {
  torch::Device device;
  torch::Dtype dtype;
};

class DeviceKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!compat::has_cuda()) GTEST_SKIP() << "no GPU here";
  }

  // Weights that bf16 holds exactly: drawn in bf16, used in either type.
  static Result run(const spec::Model& spec, const Where& where, std::int64_t padding_id) {
    const auto drawn = build_model(spec, {.dtype = torch::kBFloat16, .device = torch::kCPU, .seed = 3});
    const auto model = build_model(spec, {.dtype = where.dtype, .device = where.device, .seed = 3});
    Result result;
    {
      const torch::NoGradGuard no_grad;
      const auto values = drawn->named_parameters();
      for (auto& entry : model->named_parameters()) entry.value().copy_(values[entry.key()]);
    }
    Tensor tokens = torch::arange(3 * spec.max_sequence).remainder(spec.vocab - 1).view({3, -1}) + 1;
    if (padding_id >= 0) tokens[1].slice(0, 40).fill_(padding_id);
    const Tensor target = spec.classes > 0 ? torch::tensor({0, 1, 0}, torch::kLong) : tokens;
    const ForwardContext context{.seed = 1, .step = 2, .first_index = 5, .padding_id = padding_id, .training = true};
    const LossResult loss = model->loss(tokens.to(where.device), target.to(where.device), context);
    loss.loss_sum.backward();
    result.loss = loss.loss_sum.item<double>();
    for (const auto& entry : model->named_parameters()) {
      result.names.push_back(entry.key());
      result.gradients.push_back(entry.value().grad());
    }
    return result;
  }

  static void expect_close(const spec::Model& spec, torch::Dtype dtype, double loss_limit, double gradient_limit,
                           std::int64_t padding_id = -1) {
    const Result cpu = run(spec, {torch::kCPU, torch::kFloat}, padding_id);
    const Result gpu = run(spec, {torch::Device(torch::kCUDA, 0), dtype}, padding_id);
    EXPECT_NEAR(gpu.loss / cpu.loss, 1.0, loss_limit) << spec.name;
    double norm = 0;
    for (const Tensor& gradient : cpu.gradients) norm = std::max(norm, gradient.norm().item<double>());
    for (std::size_t i = 0; i < cpu.gradients.size(); ++i) {
      // The gradient of a key's bias is 0 but for rounding: nothing to be near to.
      if (cpu.gradients[i].norm().item<double>() < 1e-4 * norm) continue;
      EXPECT_LT(distance(gpu.gradients[i], cpu.gradients[i]), gradient_limit) << spec.name << " " << cpu.names[i];
    }
  }

  static spec::Model classifier(std::int64_t hidden) {
    spec::Model model = testing::small_bert();
    model.hidden = hidden;
    model.head_dim = hidden / model.heads;
    model.ffn_hidden = 4 * hidden;
    model.classes = 2;
    model.name = "bert of " + std::to_string(hidden);
    return model;
  }

  torch::Device gpu_{torch::kCUDA, 0};
};

TEST_F(DeviceKernels, encoders_have_the_cpus_loss_and_gradients) {
  for (const std::int64_t hidden : {32, 256}) {  // both kernels of the residual norm
    expect_close(classifier(hidden), torch::kBFloat16, 0.02, 0.06);
    expect_close(classifier(hidden), torch::kFloat, 1e-4, 1e-3);
    expect_close(classifier(hidden), torch::kBFloat16, 0.02, 0.06, /*padding_id=*/0);
  }
}

TEST_F(DeviceKernels, decoders_have_the_cpus_loss_and_gradients) {
  spec::Model wide = testing::small_llama();  // heads that the rotary kernel takes, classes that the loss kernel takes
  wide.name = "llama with wider heads";
  wide.hidden = 64;
  wide.head_dim = 16;
  wide.vocab = 2048;
  for (const spec::Model& spec : {testing::small_gpt(), testing::small_llama(), testing::small_bert(), wide}) {
    expect_close(spec, torch::kBFloat16, 0.02, 0.06);
    expect_close(spec, torch::kFloat, 1e-4, 1e-3);
  }
}

TEST_F(DeviceKernels, the_loss_kernel_skips_what_is_ignored_in_any_chunk) {
  Tensor target = torch::arange(70).remainder(2048);
  target.slice(0, 3, 9).fill_(-100);
  const auto run = [&](const Where& where, std::int64_t chunk) {
    std::vector<Tensor> leaves{draw({70, 64}, "x"), draw({2048, 64}, "w") * 0.1, draw({2048}, "b")};
    for (Tensor& leaf : leaves)
      leaf = leaf.to(torch::kBFloat16).to(where.device, where.dtype).detach().requires_grad_(true);
    const Tensor near = target.to(where.device);
    const Tensor loss = linear_cross_entropy(leaves[0], leaves[1], leaves[2], near, false, chunk).loss_sum;
    std::vector<Tensor> results = torch::autograd::grad({loss * 0.5}, leaves);
    results.push_back(loss.detach());
    return results;
  };
  const std::vector<Tensor> cpu = run({torch::kCPU, torch::kFloat}, 0);
  for (const std::int64_t chunk : {0, 33}) {
    const std::vector<Tensor> gpu = run({gpu_, torch::kBFloat16}, chunk);
    for (std::size_t i = 0; i < cpu.size(); ++i) EXPECT_LT(distance(gpu[i], cpu[i]), 0.02) << i;
  }
}

TEST_F(DeviceKernels, dropout_masks_are_the_cpus) {
  const DropoutSite site{9, 4, 17, 3};
  const Tensor x = draw({3, 20, 64}, "x").abs() + 0.5;
  const Tensor positions = torch::arange(20) * 2 + 1;
  for (const Tensor& rows : {Tensor(), positions}) {
    const Tensor expected = dropout(x, 0.1, site, rows) != 0;
    for (const torch::Dtype dtype : {torch::kFloat, torch::kBFloat16}) {
      Tensor near = x.to(gpu_, dtype).requires_grad_(true);
      const Tensor y = dropout(near, 0.1, site, rows.defined() ? rows.to(gpu_) : rows);
      EXPECT_TRUE(torch::equal((y != 0).cpu(), expected));
      y.sum().backward();
      EXPECT_TRUE(torch::equal((near.grad() != 0).cpu(), expected));
      EXPECT_NEAR(near.grad().max().item<double>(), 1.0 / 0.9, 0.01);
    }
  }
}

TEST_F(DeviceKernels, attention_draws_its_masks_again_in_backward) {
  const auto near = [&](const char* name) { return draw({2, 48, 4, 64}, name).to(gpu_, torch::kBFloat16); };
  const Tensor q = near("q"), k = near("k"), v = near("v"), dout = near("dout"), change = near("change");
  for (const Tensor& lengths : {Tensor(), torch::tensor({48, 20}, torch::kLong).to(gpu_)}) {
    AttentionOptions options;
    options.causal = false;
    options.lengths = lengths;
    options.dropout = 0.3;
    options.site = {1, 2, 3, 4};
    Tensor leaf = v.clone().requires_grad_(true);
    const Tensor out = self_attention(q, k, leaf, options);
    EXPECT_TRUE(torch::equal(out, self_attention(q, k, v, options)));
    AttentionOptions other = options;
    other.site.step = 3;
    EXPECT_FALSE(torch::equal(out, self_attention(q, k, v, other)));
    // The result is linear in v, so the gradient foretells any change exactly, if the mask is the same.
    (out * dout).sum().backward();
    const auto dot = [](const Tensor& a, const Tensor& b) {
      return (a.to(torch::kDouble) * b.to(torch::kDouble)).sum().item<double>();
    };
    const double foretold = dot(leaf.grad(), change);
    EXPECT_NEAR(dot(self_attention(q, k, change, options), dout), foretold, 0.02 * std::abs(foretold) + 0.5);
  }
}

TEST_F(DeviceKernels, draws_the_first_values_of_the_host) {
  const PhiloxKey key = stream_key(7, "model.layers.0.mlp.gate_proj.weight");
  for (const std::int64_t first : {0, 3, 4096, 1'000'001}) {
    const auto draw = [&](torch::Dtype dtype, torch::Device device) {
      Tensor values = torch::full({100'003}, std::nan(""), torch::dtype(dtype).device(device));
      fill_normal(values, 0.5, 0.02, key, first);
      return values.cpu();
    };
    EXPECT_TRUE(draw(torch::kDouble, torch::kCUDA).allclose(draw(torch::kDouble, torch::kCPU), 1e-13, 1e-15));
    for (const torch::Dtype dtype : {torch::kFloat, torch::kBFloat16}) {
      const Tensor differ = draw(dtype, torch::kCUDA) != draw(dtype, torch::kCPU);
      EXPECT_LE(differ.sum().item<std::int64_t>(), 1) << "from " << first;
    }
  }
}

}  // namespace
}  // namespace lockstep::nn
