// Batch normalisation together with what follows it in a residual network. Where the CUDA kernels fit (bf16 on a GPU,
// in training) each of these is one function with its own backward; elsewhere it is libtorch's operators in a row.
#pragma once

#include <torch/types.h>

#include "lockstep/nn/layers.h"

namespace lockstep::nn {

// Whether tensors like `x` go through the kernels; then images are channels last in memory.
bool has_fused_batch_norm(const torch::Tensor& x, bool training);

// ReLU(norm(x)).
torch::Tensor norm_relu(BatchNorm2d& norm, const torch::Tensor& x, bool training);

// max_pool(ReLU(norm(x))), 3x3 of stride 2 and padding 1.
torch::Tensor norm_relu_pool(BatchNorm2d& norm, const torch::Tensor& x, bool training);

// The output of a residual block, twice: the next block reads it in two places, and their gradients come back apart, to
// be added where they are needed.
struct BlockOutput {
  torch::Tensor main;
  torch::Tensor shortcut;
};

// ReLU(norm(x) + shortcut) or, with `shortcut_norm`, ReLU(norm(x) + shortcut_norm(shortcut)). `stride` is that of the
// next block: with 2 its shortcut reads only pixels of even rows and columns, and the kernels give no others; a caller
// sees that by the size.
BlockOutput norm_add_relu(BatchNorm2d& norm, const torch::Tensor& x, BatchNorm2d* shortcut_norm,
                          const torch::Tensor& shortcut, std::int64_t stride, bool training);

// Mean over height and width: [images, channels].
torch::Tensor average_pool(const torch::Tensor& x, bool training);

}  // namespace lockstep::nn
