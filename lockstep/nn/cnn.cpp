// The two small convolutional networks: MNIST's is that of PyTorch's examples, CIFAR's a four-layer VGG.
#include <array>
#include <string>

#include "lockstep/nn/image_model.h"

namespace lockstep::nn {
namespace {

using torch::Tensor;

constexpr Init kTorchDefault{Init::Kind::kKaimingUniform};

// conv 3x3 (32), conv 3x3 (64), max-pool, fc 128, fc classes; no padding, dropout after the pool and after fc1 where
// spec.dropout is set.
class MnistCnn : public ImageModel {
 public:
  MnistCnn(const spec::Model& model, const torch::TensorOptions& options)
      : ImageModel(model, options.dtype().toScalarType()) {
    const std::int64_t side = (model.image_size - 4) / 2;  // two valid 3x3 convolutions, then 2x2 pooling
    conv1_ = register_module(
        "conv1", std::make_shared<Conv2d>(ConvShape{.in = model.image_channels, .out = 32}, kTorchDefault, options));
    conv2_ = register_module("conv2", std::make_shared<Conv2d>(ConvShape{.in = 32, .out = 64}, kTorchDefault, options));
    fc1_ = register_module(
        "fc1", std::make_shared<Linear>(64 * side * side, 128, true, WeightLayout::kOutIn, kTorchDefault, options));
    fc2_ = register_module(
        "fc2", std::make_shared<Linear>(128, model.classes, true, WeightLayout::kOutIn, kTorchDefault, options));
  }

 protected:
  Tensor features(const Tensor& images, const ForwardContext& context) override {
    const double p = context.training ? spec().dropout : 0.0;
    const auto site = [&](std::uint32_t layer) {
      return DropoutSite{context.seed, context.step, context.first_index, layer};
    };
    Tensor x = at::relu(conv2_->forward(at::relu(conv1_->forward(normalised(images)))));
    x = dropout(at::max_pool2d(x, {2, 2}), p, site(1)).flatten(1);
    return dropout(at::relu(fc1_->forward(x)), p, site(2));
  }
  const Linear& classifier() const override { return *fc2_; }

 private:
  std::shared_ptr<Conv2d> conv1_, conv2_;
  std::shared_ptr<Linear> fc1_, fc2_;
};

// Two stages of two 3x3 convolutions with batch norm (so without bias), a max-pool after each, global average pool, fc.
class CifarCnn : public ImageModel {
 public:
  CifarCnn(const spec::Model& model, const torch::TensorOptions& options)
      : ImageModel(model, options.dtype().toScalarType()) {
    const std::array<std::int64_t, 5> channels{model.image_channels, 64, 128, 256, 256};
    for (std::size_t i = 0; i < 4; ++i) {
      const ConvShape shape{.in = channels[i], .out = channels[i + 1], .padding = 1, .bias = false};
      conv_[i] =
          register_module("conv" + std::to_string(i + 1), std::make_shared<Conv2d>(shape, kTorchDefault, options));
      bn_[i] = register_module("bn" + std::to_string(i + 1), std::make_shared<BatchNorm2d>(shape.out, options));
    }
    fc_ = register_module(
        "fc", std::make_shared<Linear>(256, model.classes, true, WeightLayout::kOutIn, kTorchDefault, options));
  }

 protected:
  Tensor features(const Tensor& images, const ForwardContext& context) override {
    Tensor x = normalised(images);
    for (std::size_t i = 0; i < 4; ++i) {
      x = bn_[i]->forward(conv_[i]->forward(x), context.training).relu_();
      if (i % 2 == 1) x = at::max_pool2d(x, {2, 2});
    }
    x = x.mean({2, 3});
    return dropout(x, context.training ? spec().dropout : 0.0, {context.seed, context.step, context.first_index, 1});
  }
  const Linear& classifier() const override { return *fc_; }

 private:
  std::array<std::shared_ptr<Conv2d>, 4> conv_;
  std::array<std::shared_ptr<BatchNorm2d>, 4> bn_;
  std::shared_ptr<Linear> fc_;
};

}  // namespace

std::shared_ptr<TrainableModel> make_mnist_cnn(const spec::Model& spec, const torch::TensorOptions& options) {
  return std::make_shared<MnistCnn>(spec, options);
}

std::shared_ptr<TrainableModel> make_cifar_cnn(const spec::Model& spec, const torch::TensorOptions& options) {
  return std::make_shared<CifarCnn>(spec, options);
}

}  // namespace lockstep::nn
