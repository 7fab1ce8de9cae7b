#include "lockstep/nn/image_model.h"

#include <string>

#include "lockstep/base/error.h"

namespace lockstep::nn {

using torch::Tensor;

Tensor ImageModel::checked(const Tensor& input) const {
  if (input.dim() != 4 || input.size(1) != spec().image_channels) {
    throw bad_input("images with " + std::to_string(input.dim() == 4 ? input.size(1) : 0) + " channels do not fit " +
                        spec().name + ", which has " + std::to_string(spec().image_channels),
                    "set model.image_channels to the data's");
  }
  return input.scalar_type() == dtype() ? input : input.to(dtype());
}

Tensor ImageModel::forward(const Tensor& input, const ForwardContext& context) {
  return classifier().forward(features(checked(input), context));
}

LossResult ImageModel::loss(const Tensor& input, const Tensor& target, const ForwardContext& context) {
  if (input.size(0) == 0) {
    const auto wide = dtype() == torch::kDouble ? torch::kDouble : torch::kFloat;
    return {torch::zeros({}, torch::dtype(wide).device(input.device())), 0, 0};
  }
  const CrossEntropy result = linear_cross_entropy(features(checked(input), context), classifier().weight,
                                                   classifier().bias, target, !context.training);
  return {result.loss_sum, result.count, result.correct};
}

}  // namespace lockstep::nn
