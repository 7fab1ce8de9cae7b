// ResNet (He et al. 2015) with torchvision's structure, names and initialisation; stride on the 3x3 convolution of a
// bottleneck ("v1.5").
#include <string>
#include <vector>

#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/image_model.h"
#ifdef LOCKSTEP_TORCH_HAS_CUDA
#include "lockstep/nn/cuda/image_functions.h"
#endif

namespace lockstep::nn {
namespace {

using torch::Tensor;

constexpr Init kFanOut{Init::Kind::kKaimingNormalFanOut};

std::shared_ptr<Conv2d> conv(std::int64_t in, std::int64_t out, std::int64_t kernel, std::int64_t stride,
                             const torch::TensorOptions& options) {
  return std::make_shared<Conv2d>(
      ConvShape{.in = in, .out = out, .kernel = kernel, .stride = stride, .padding = kernel / 2, .bias = false},
      kFanOut, options);
}

// conv-bn(-relu) pairs in a row, plus the identity or a projected shortcut.
class ResidualBlock : public torch::nn::Module {
 public:
  ResidualBlock(std::int64_t in, std::int64_t width, std::int64_t stride, bool bottleneck,
                const torch::TensorOptions& options)
      : stride_(stride) {
    const std::int64_t out = bottleneck ? 4 * width : width;
    if (bottleneck) {
      add(conv(in, width, 1, 1, options), width, options);
      add(conv(width, width, 3, stride, options), width, options);
      add(conv(width, out, 1, 1, options), out, options);
    } else {
      add(conv(in, width, 3, stride, options), width, options);
      add(conv(width, width, 3, 1, options), width, options);
    }
    if (stride != 1 || in != out) {
      auto downsample = register_module("downsample", std::make_shared<Group>());
      shortcut_ = downsample->register_module("0", conv(in, out, 1, stride, options));
      shortcut_bn_ = downsample->register_module("1", std::make_shared<BatchNorm2d>(out, options));
    }
  }

  std::int64_t stride() const { return stride_; }

  // `next_stride`: of the block that reads the result.
  BlockOutput forward(const BlockOutput& x, std::int64_t next_stride, bool training) {
    Tensor y = x.main;
    for (std::size_t i = 0; i + 1 < convs_.size(); ++i) y = norm_relu(*norms_[i], convs_[i]->forward(y), training);
    y = convs_.back()->forward(y);
    return norm_add_relu(*norms_.back(), y, shortcut_bn_.get(), project(x), next_stride, training);
  }

 private:
  Tensor project(const BlockOutput& x) const {
    if (!shortcut_) return x.shortcut;
    const bool visited = x.shortcut.size(2) != x.main.size(2);
    return visited ? shortcut_->forward_visited(x.shortcut) : shortcut_->forward(x.shortcut);
  }

  void add(std::shared_ptr<Conv2d> convolution, std::int64_t channels, const torch::TensorOptions& options) {
    const std::string number = std::to_string(convs_.size() + 1);
    convs_.push_back(register_module("conv" + number, std::move(convolution)));
    norms_.push_back(register_module("bn" + number, std::make_shared<BatchNorm2d>(channels, options)));
  }

  std::int64_t stride_;
  std::vector<std::shared_ptr<Conv2d>> convs_;
  std::vector<std::shared_ptr<BatchNorm2d>> norms_;
  std::shared_ptr<Conv2d> shortcut_;  // null: identity
  std::shared_ptr<BatchNorm2d> shortcut_bn_;
};

class ResNet : public ImageModel {
 public:
  ResNet(const spec::Model& model, const torch::TensorOptions& options)
      : ImageModel(model, options.dtype().toScalarType()) {
#ifdef LOCKSTEP_TORCH_HAS_CUDA
    if (options.device().is_cuda()) cuda::search_convolutions();
#endif
    conv1_ = register_module(
        "conv1",
        std::make_shared<Conv2d>(
            ConvShape{.in = model.image_channels, .out = 64, .kernel = 7, .stride = 2, .padding = 3, .bias = false},
            kFanOut, options));
    bn1_ = register_module("bn1", std::make_shared<BatchNorm2d>(64, options));
    std::int64_t channels = 64;
    for (std::size_t stage = 0; stage < model.stage_blocks.size(); ++stage) {
      auto group = register_module("layer" + std::to_string(stage + 1), std::make_shared<Group>());
      const std::int64_t width = std::int64_t{64} << stage;
      for (std::int64_t i = 0; i < model.stage_blocks[stage]; ++i) {
        const std::int64_t stride = stage > 0 && i == 0 ? 2 : 1;
        blocks_.push_back(group->register_module(
            std::to_string(i), std::make_shared<ResidualBlock>(channels, width, stride, model.bottleneck, options)));
        channels = model.bottleneck ? 4 * width : width;
      }
    }
    fc_ = register_module("fc", std::make_shared<Linear>(channels, model.classes, true, WeightLayout::kOutIn,
                                                         Init{Init::Kind::kKaimingUniform}, options));
  }

 protected:
  Tensor features(const Tensor& images, const ForwardContext& context) override {
    const Tensor first = norm_relu_pool(*bn1_, stem(images, context.training), context.training);
    BlockOutput x{first, first};
    for (std::size_t i = 0; i < blocks_.size(); ++i) {
      const std::int64_t next_stride = i + 1 < blocks_.size() ? blocks_[i + 1]->stride() : 1;
      x = blocks_[i]->forward(x, next_stride, context.training);
    }
    return average_pool(x.main, context.training);
  }
  const Linear& classifier() const override { return *fc_; }

 private:
  Tensor stem(const Tensor& images, bool training) const {
#ifdef LOCKSTEP_TORCH_HAS_CUDA
    if (training && cuda::takes_pixels(images, conv1_->weight)) return cuda::pixel_convolution(images, conv1_->weight);
#endif
    static_cast<void>(training);
    return conv1_->forward(normalised(images));
  }

  std::shared_ptr<Conv2d> conv1_;
  std::shared_ptr<BatchNorm2d> bn1_;
  std::vector<std::shared_ptr<ResidualBlock>> blocks_;
  std::shared_ptr<Linear> fc_;
};

}  // namespace

std::shared_ptr<TrainableModel> make_resnet(const spec::Model& spec, const torch::TensorOptions& options) {
  return std::make_shared<ResNet>(spec, options);
}

}  // namespace lockstep::nn
