#include "lockstep/nn/batch_norm.h"

#ifdef LOCKSTEP_TORCH_HAS_CUDA
#include "lockstep/nn/cuda/image_functions.h"
#endif

namespace lockstep::nn {

using torch::Tensor;

#ifdef LOCKSTEP_TORCH_HAS_CUDA
bool has_fused_batch_norm(const Tensor& x, bool training) {
  return training && x.is_cuda() && x.scalar_type() == torch::kBFloat16 && x.dim() == 4 && x.size(1) % 8 == 0;
}
#else
bool has_fused_batch_norm(const Tensor&, bool) { return false; }
#endif

Tensor norm_relu(BatchNorm2d& norm, const Tensor& x, bool training) {
#ifdef LOCKSTEP_TORCH_HAS_CUDA
  if (has_fused_batch_norm(x, training)) return cuda::norm_relu(norm, x);
#endif
  return norm.forward(x, training).relu_();
}

Tensor norm_relu_pool(BatchNorm2d& norm, const Tensor& x, bool training) {
#ifdef LOCKSTEP_TORCH_HAS_CUDA
  if (has_fused_batch_norm(x, training)) return cuda::norm_relu_pool(norm, x);
#endif
  return at::max_pool2d(norm.forward(x, training).relu_(), {3, 3}, {2, 2}, {1, 1});
}

BlockOutput norm_add_relu(BatchNorm2d& norm, const Tensor& x, BatchNorm2d* shortcut_norm, const Tensor& shortcut,
                          [[maybe_unused]] std::int64_t stride, bool training) {
#ifdef LOCKSTEP_TORCH_HAS_CUDA
  if (has_fused_batch_norm(x, training)) return cuda::norm_add_relu(norm, x, shortcut_norm, shortcut, stride);
#endif
  // Batch norm keeps its input, not its output: that is free to be overwritten.
  const Tensor added = shortcut_norm == nullptr ? shortcut : shortcut_norm->forward(shortcut, training);
  const Tensor y = norm.forward(x, training).add_(added).relu_();
  return {y, y};
}

Tensor average_pool(const Tensor& x, bool training) {
#ifdef LOCKSTEP_TORCH_HAS_CUDA
  if (has_fused_batch_norm(x, training)) return cuda::average_pool(x);
#endif
  static_cast<void>(training);
  return x.mean({2, 3});
}

}  // namespace lockstep::nn
