// One-pass optimizer updates over flat contiguous arrays: what libtorch does in six to ten passes over memory.
//
// Every function takes flat, contiguous, equally long tensors of one dtype (fp32 or fp64) and works in that dtype.
// On the CPU the work is cut into blocks of kBlockElements and spread with at::parallel_for; results do not depend on
// the number of threads, nor on the instruction set (no fused multiply-add), so ranks on unlike machines stay equal.
// On CUDA one kernel does the same (kernels/cuda/flat_optimizer.h); other devices take libtorch's own operators.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <span>

namespace lockstep::kernels {

// Unit of work and of summation: fixed, so that no result depends on the number of threads.
inline constexpr std::int64_t kBlockElements = 16384;

// Half-open range of elements [begin, end) of a flat array.
struct ElementRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// torch.optim.AdamW, with t = `step` counted from 1 and g = gradient_factor * gradient:
//   p <- p - learning_rate * weight_decay * p           (only inside the decay ranges)
//   m <- beta1 * m + (1 - beta1) * g
//   v <- beta2 * v + (1 - beta2) * g^2
//   p <- p - learning_rate / (1 - beta1^t) * m / (sqrt(v) / sqrt(1 - beta2^t) + epsilon)
struct AdamWStep {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double epsilon = 1e-8;
  double weight_decay = 0.01;
  std::int64_t step = 1;
  double gradient_factor = 1.0;  // unscaling and clipping, folded into the pass
};

// torch.optim.SGD (dampening 0), with g = gradient_factor * gradient:
//   g <- g + weight_decay * p                            (only inside the decay ranges)
//   b <- momentum * b + g                                (b starts at zero, so the first step has b = g)
//   p <- p - learning_rate * (nesterov ? g + momentum * b : b)
struct SgdStep {
  double learning_rate = 1e-2;
  double momentum = 0.0;
  double weight_decay = 0.0;
  bool nesterov = false;
  double gradient_factor = 1.0;
};

// The arrays of one update. `parameter`, `first` and `second` are written.
struct OptimizerArrays {
  torch::Tensor parameter;  // [n] fp32 or fp64: master weights, or the weights themselves
  torch::Tensor gradient;   // [n] same dtype (on CUDA bf16 too, for fp32 parameters); read only
  torch::Tensor first;      // [n] AdamW: m; SGD: momentum buffer, undefined when momentum is 0
  torch::Tensor second;     // [n] AdamW: v
  torch::Tensor copy;       // undefined, or [n] bf16 / fp16: the model's weights, rounded to nearest even
};

// `decay` is sorted and does not overlap; elements outside of it get no weight decay. `arrays.copy` receives the new
// parameters rounded to its dtype.
void adamw(const OptimizerArrays& arrays, std::span<const ElementRange> decay, const AdamWStep& step);
void sgd(const OptimizerArrays& arrays, std::span<const ElementRange> decay, const SgdStep& step);

// Sum of squares of a flat fp32 or fp64 tensor, accumulated in fp64 lane by lane and block by block in a fixed order.
// NaN and infinity in the input show in the result.
double squared_norm(const torch::Tensor& flat);

// sum += squared_norm(flat), on CUDA of bf16 too, without waiting for the device. `sum` is 0-dim, fp64, where `flat`
// is.
void add_squared_norm(const torch::Tensor& flat, torch::Tensor& sum);

}  // namespace lockstep::kernels
