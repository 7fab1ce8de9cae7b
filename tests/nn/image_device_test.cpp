// A residual network on a GPU, by libtorch's operators (fp32) and by our kernels (bf16), against the CPU in fp32 from
// the same weights. Without a GPU there is nothing to compare.
#include <gtest/gtest.h>
#include <torch/types.h>

#include <cmath>
#include <map>
#include <string>

#include "lockstep/nn/model.h"
#include "lockstep/nn/random.h"
#include "lockstep/nn/torch_compat.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

spec::Model small_resnet(bool bottleneck) {
  spec::Model model;
  model.name = "small-resnet";
  model.arch = spec::Arch::kResNet;
  model.stage_blocks = {2, 2};
  model.bottleneck = bottleneck;
  model.image_size = 32;
  model.image_channels = 3;
  model.classes = 10;
  return model;
}

struct Pass {
  double loss = 0;
  std::map<std::string, Tensor> gradients, buffers;  // fp32, on the CPU
};

// Weights that bf16 holds exactly, so that every precision starts from the same.
Pass run(const spec::Model& spec, torch::Dtype dtype, torch::Device device, const Tensor& images,
         const Tensor& targets) {
  const auto model = build_model(spec, {.dtype = dtype, .device = device, .seed = 5});
  {
    const torch::NoGradGuard no_grad;
    for (Tensor& parameter : model->parameters()) parameter.copy_(parameter.to(torch::kBFloat16));
  }
  const LossResult result = model->loss(images.to(device), targets.to(device), {.training = true});
  (result.loss_sum / static_cast<double>(targets.numel())).backward();
  Pass pass;
  pass.loss = result.loss_sum.item<double>() / static_cast<double>(targets.numel());
  for (const auto& item : model->named_parameters()) {
    pass.gradients[item.key()] = item.value().grad().to(torch::kCPU, torch::kFloat).contiguous();
  }
  for (const auto& item : model->named_buffers()) {
    pass.buffers[item.key()] = item.value().to(torch::kCPU, torch::kFloat);
  }
  return pass;
}

double relative_error(const Tensor& a, const Tensor& b) {
  return ((a - b).norm() / b.norm().clamp_min(1e-12)).item<double>();
}

// Of all gradients as one vector.
double total_error(const Pass& a, const Pass& b) {
  double error = 0, norm = 0;
  for (const auto& [name, gradient] : b.gradients) {
    error += std::pow((a.gradients.at(name) - gradient).norm().item<double>(), 2);
    norm += std::pow(gradient.norm().item<double>(), 2);
  }
  return std::sqrt(error / norm);
}

class ImagesOnGpu : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!compat::has_cuda()) GTEST_SKIP() << "no GPU here";
    at::globalContext().setAllowTF32CuDNN(false);  // fp32 shall be fp32
  }

  torch::Device gpu_{torch::kCUDA, 0};
  // Smooth images: with noise alone the network's gradient would be noise as well.
  Tensor images_ =
      (torch::arange(48 * 3 * 32 * 32).remainder(7919).remainder(251)).to(torch::kByte).view({48, 3, 32, 32});
  Tensor targets_ = torch::arange(48).remainder(10);
};

TEST_P(ImagesOnGpu, fp32_is_the_cpus) {
  const spec::Model spec = small_resnet(GetParam());
  const Pass cpu = run(spec, torch::kFloat, torch::kCPU, images_, targets_);
  const Pass gpu = run(spec, torch::kFloat, gpu_, images_, targets_);
  EXPECT_NEAR(gpu.loss, cpu.loss, 2e-3 * cpu.loss);
  EXPECT_LT(total_error(gpu, cpu), 0.02);
  for (const auto& [name, value] : cpu.buffers) EXPECT_LT(relative_error(gpu.buffers.at(name), value), 1e-3) << name;
}

// Rounding to 8 bits turns some ReLUs on or off, and a small network's gradient with them: how far bf16 strays from
// fp32 is what the CPU's bf16 shows, by operators that share no code with ours.
TEST_P(ImagesOnGpu, bf16_by_own_kernels_is_as_close_to_fp32_as_the_cpus_bf16) {
  const spec::Model spec = small_resnet(GetParam());
  const Pass wide = run(spec, torch::kFloat, torch::kCPU, images_, targets_);
  const Pass cpu = run(spec, torch::kBFloat16, torch::kCPU, images_, targets_);
  const Pass gpu = run(spec, torch::kBFloat16, gpu_, images_, targets_);
  EXPECT_NEAR(gpu.loss, wide.loss, 0.02 * wide.loss);
  const double expected = total_error(cpu, wide);
  EXPECT_LT(total_error(gpu, wide), 1.3 * expected + 0.01);
  for (const auto& [name, gradient] : wide.gradients) {
    EXPECT_LT(relative_error(gpu.gradients.at(name), gradient),
              2 * relative_error(cpu.gradients.at(name), gradient) + 0.05)
        << name;
  }
  for (const auto& [name, value] : wide.buffers) EXPECT_LT(relative_error(gpu.buffers.at(name), value), 0.03) << name;
}

INSTANTIATE_TEST_SUITE_P(blocks, ImagesOnGpu, ::testing::Values(false, true));

}  // namespace
}  // namespace lockstep::nn
