// What the image models share: features, then one fully connected layer.
#pragma once

#include <array>
#include <memory>

#include "lockstep/nn/layers.h"
#include "lockstep/nn/model.h"

namespace lockstep::nn {

// Images [samples, channels, height, width] in `dtype`: bytes become (x/255 - mean) / deviation of their channel.
torch::Tensor normalised_images(const torch::Tensor& images, torch::Dtype dtype);

class ImageModel : public TrainableModel {
 public:
  torch::Tensor forward(const torch::Tensor& input, const ForwardContext& context) override;
  LossResult loss(const torch::Tensor& input, const torch::Tensor& target, const ForwardContext& context) override;

 protected:
  using TrainableModel::TrainableModel;

  // [samples, channels, height, width] -> [samples, features] that the classifier reads. `images` are the data set's:
  // normalised, or bytes.
  virtual torch::Tensor features(const torch::Tensor& images, const ForwardContext& context) = 0;
  virtual const Linear& classifier() const = 0;

  torch::Tensor normalised(const torch::Tensor& images) const { return normalised_images(images, dtype()); }

 private:
  void check(const torch::Tensor& input) const;
};

// ImageNet's, as torchvision's models use them; images that do not have three channels take the averages.
inline constexpr std::array<float, 3> kPixelMean = {0.485f, 0.456f, 0.406f};
inline constexpr std::array<float, 3> kPixelDeviation = {0.229f, 0.224f, 0.225f};

std::shared_ptr<TrainableModel> make_mnist_cnn(const spec::Model& spec, const torch::TensorOptions& options);
std::shared_ptr<TrainableModel> make_cifar_cnn(const spec::Model& spec, const torch::TensorOptions& options);
std::shared_ptr<TrainableModel> make_resnet(const spec::Model& spec, const torch::TensorOptions& options);

}  // namespace lockstep::nn
