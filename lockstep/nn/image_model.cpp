#include "lockstep/nn/image_model.h"

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::nn {

using torch::Tensor;

namespace {

Tensor per_channel(const std::array<float, 3>& values, std::int64_t channels, const torch::TensorOptions& options) {
  const Tensor all = torch::tensor({values[0], values[1], values[2]}, torch::kFloat);
  return (channels == 3 ? all : all.mean().expand({channels}).contiguous()).view({1, channels, 1, 1}).to(options);
}

}  // namespace

Tensor normalised_images(const Tensor& images, torch::Dtype dtype) {
  if (images.scalar_type() != torch::kByte) return images.scalar_type() == dtype ? images : images.to(dtype);
  const auto wide = images.options().dtype(dtype == torch::kDouble ? torch::kDouble : torch::kFloat);
  const Tensor mean = per_channel(kPixelMean, images.size(1), wide);
  const Tensor deviation = per_channel(kPixelDeviation, images.size(1), wide);
  return images.to(wide).div_(255.0).sub_(mean).div_(deviation).to(dtype);
}

void ImageModel::check(const Tensor& input) const {
  if (input.dim() != 4 || input.size(1) != spec().image_channels) {
    throw bad_input("images with " + std::to_string(input.dim() == 4 ? input.size(1) : 0) + " channels do not fit " +
                        spec().name + ", which has " + std::to_string(spec().image_channels),
                    "set model.image_channels to the data's");
  }
}

Tensor ImageModel::forward(const Tensor& input, const ForwardContext& context) {
  check(input);
  return classifier().forward(features(input, context));
}

LossResult ImageModel::loss(const Tensor& input, const Tensor& target, const ForwardContext& context) {
  if (input.size(0) == 0) {
    const auto wide = dtype() == torch::kDouble ? torch::kDouble : torch::kFloat;
    return {torch::zeros({}, torch::dtype(wide).device(input.device())), 0, 0};
  }
  check(input);
  const CrossEntropy result =
      linear_cross_entropy(features(input, context), classifier().weight, classifier().bias, target, !context.training);
  return {result.loss_sum, result.count, result.correct};
}

}  // namespace lockstep::nn
