// Residual networks on a GPU in bf16: the functions of nn/batch_norm.h by own kernels, convolutions that keep channels
// last, and the first convolution straight from bytes. All differentiable, on libtorch's current stream.
#pragma once

#include <torch/types.h>

#include "lockstep/nn/batch_norm.h"

namespace lockstep::nn::cuda {

torch::Tensor norm_relu(BatchNorm2d& norm, const torch::Tensor& x);
torch::Tensor norm_relu_pool(BatchNorm2d& norm, const torch::Tensor& x);
BlockOutput norm_add_relu(BatchNorm2d& norm, const torch::Tensor& x, BatchNorm2d* shortcut_norm,
                          const torch::Tensor& shortcut);
torch::Tensor average_pool(const torch::Tensor& x);

// From now on cuDNN tries its algorithms for every new shape of a convolution and keeps the fastest. A setting of the
// process, like libtorch's own.
void search_convolutions();

// Convolution without bias; the result is channels last.
torch::Tensor convolution(const torch::Tensor& x, const torch::Tensor& weight, std::int64_t stride,
                          std::int64_t padding);

// A 7x7 convolution of stride 2 and padding 3 over normalised pixels, as a 4x4 one over 2x2 squares of them: 3 channels
// leave most of a tensor core idle, 16 do not. `pixels` uint8 [n, 3, height, width] with even sides, `weight`
// [out, 3, 7, 7].
bool takes_pixels(const torch::Tensor& pixels, const torch::Tensor& weight);
torch::Tensor pixel_convolution(const torch::Tensor& pixels, const torch::Tensor& weight);

}  // namespace lockstep::nn::cuda
