// What the image models share: features, then one fully connected layer.
#pragma once

#include <memory>

#include "lockstep/nn/layers.h"
#include "lockstep/nn/model.h"

namespace lockstep::nn {

class ImageModel : public TrainableModel {
 public:
  torch::Tensor forward(const torch::Tensor& input, const ForwardContext& context) override;
  LossResult loss(const torch::Tensor& input, const torch::Tensor& target, const ForwardContext& context) override;

 protected:
  using TrainableModel::TrainableModel;

  // [samples, channels, height, width] -> [samples, features] that the classifier reads.
  virtual torch::Tensor features(const torch::Tensor& images, const ForwardContext& context) = 0;
  virtual const Linear& classifier() const = 0;

 private:
  torch::Tensor checked(const torch::Tensor& input) const;
};

std::shared_ptr<TrainableModel> make_mnist_cnn(const spec::Model& spec, const torch::TensorOptions& options);
std::shared_ptr<TrainableModel> make_cifar_cnn(const spec::Model& spec, const torch::TensorOptions& options);
std::shared_ptr<TrainableModel> make_resnet(const spec::Model& spec, const torch::TensorOptions& options);

}  // namespace lockstep::nn
