// Softmax cross-entropy over rows of logits, in place: logits become their gradient.
#pragma once

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

struct CrossEntropy {
  Bf16* logits = nullptr;                 // [rows, classes] in; out: (softmax - one_hot) * *gradient_scale
  const std::int32_t* targets = nullptr;  // [rows]; < 0 or >= classes: ignored, loss and gradient 0
  const float* gradient_scale = nullptr;  // usually 1 / (counted rows * micro-batches)
  float* losses = nullptr;                // [rows], not scaled
  std::int64_t rows = 0, classes = 0;     // classes: a multiple of 8
};
void cross_entropy(const CrossEntropy& a, cudaStream_t stream);

// *gradient_scale = 1 / (targets in [0, classes) * divisor), 0 where none counts.
void count_targets(const std::int32_t* targets, std::int64_t rows, std::int64_t classes, float divisor,
                   float* gradient_scale, cudaStream_t stream);
// *loss = sum(losses) * *gradient_scale, added to with `accumulate`. One block, fixed order.
void reduce_losses(const float* losses, std::int64_t rows, const float* gradient_scale, float* loss, bool accumulate,
                   cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
