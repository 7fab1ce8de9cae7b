// Residual networks on a GPU in bf16: the functions of nn/batch_norm.h by own kernels, convolutions that keep channels
// last, and the first convolution straight from bytes. All differentiable, on libtorch's current stream.
#pragma once

#include <torch/types.h>

#include "lockstep/nn/batch_norm.h"

namespace lockstep::nn::cuda {

torch::Tensor norm_relu(BatchNorm2d& norm, const torch::Tensor& x);
torch::Tensor norm_relu_pool(BatchNorm2d& norm, const torch::Tensor& x);
BlockOutput norm_add_relu(BatchNorm2d& norm, const torch::Tensor& x, BatchNorm2d* shortcut_norm,
                          const torch::Tensor& shortcut, std::int64_t stride);
torch::Tensor average_pool(const torch::Tensor& x);

// From now on cuDNN tries algorithms, ten at most, for every new shape of a convolution and keeps the fastest; all of
// them would take half a minute. A setting of the process, like libtorch's own.
void search_convolutions();

// Convolution without bias; the result is channels last.
torch::Tensor convolution(const torch::Tensor& x, const torch::Tensor& weight, std::int64_t stride,
                          std::int64_t padding);

// The first convolution of a residual network, 7x7 of stride 2 and padding 3, from bytes: `pixels` uint8 [n, 3, height,
// width] with sides that are multiples of 4, `weight` [out, 3, 7, 7]. The result comes by squares of 2x2 pixels,
// [n, 4 out, height / 4, width / 4] (kernels/cuda/pooling.h); norm_relu_pool takes it so.
bool takes_pixels(const torch::Tensor& pixels, const torch::Tensor& weight);
torch::Tensor pixel_convolution(const torch::Tensor& pixels, const torch::Tensor& weight);

}  // namespace lockstep::nn::cuda
