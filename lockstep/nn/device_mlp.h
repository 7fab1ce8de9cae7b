// The MLPs of decoders on CUDA in bf16, over cuda/operators.h: what functional.h's gelu_mlp and swiglu_mlp run there.
#pragma once

#include <torch/types.h>

#include "lockstep/nn/functional.h"

namespace lockstep::nn {

bool takes_device_mlp(const torch::Tensor& x);

// As gelu_mlp and swiglu_mlp. Gate and up are one product.
torch::Tensor device_gelu_mlp(const torch::Tensor& residual, const torch::Tensor& x, const torch::Tensor& w1,
                              const torch::Tensor& b1, const torch::Tensor& w2, const torch::Tensor& b2,
                              WeightLayout layout);
torch::Tensor device_swiglu_mlp(const torch::Tensor& residual, const torch::Tensor& x, const torch::Tensor& gate,
                                const torch::Tensor& up, const torch::Tensor& down);

}  // namespace lockstep::nn
