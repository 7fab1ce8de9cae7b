// AdamW and SGD over flat arrays in one pass, with the formulas of kernels/fused_optimizer.h (torch.optim's), and sums
// of squares. fp32 or fp64 arrays; no fused multiply-add, as on the CPU.
#pragma once

#include <cuda_fp16.h>

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

// The narrow copy of the weights that the model computes with.
enum class CopyType { kNone, kBf16, kFp16 };

template <class T>
struct FlatArrays {
  T* parameter = nullptr;
  const T* gradient = nullptr;
  const Bf16* narrow_gradient = nullptr;  // instead of `gradient`
  T* first = nullptr;                     // AdamW: m; SGD: momentum, or null
  T* second = nullptr;                    // AdamW: v
  void* copy = nullptr;                   // rounded to nearest even
  CopyType copy_type = CopyType::kNone;
  std::int64_t count = 0;
};

template <class T>
struct FlatAdamW {
  T gradient_factor = 1, keep = 1;  // keep: 1 - learning_rate * weight_decay
  T beta1 = 0, one_minus_beta1 = 0, beta2 = 0, one_minus_beta2 = 0;
  T inverse_root_correction2 = 1, epsilon = 0, step_size = 0;  // step_size: learning_rate / (1 - beta1^t)
};
template <class T>
void flat_adamw(const FlatArrays<T>& a, const FlatAdamW<T>& step, cudaStream_t stream);

template <class T>
struct FlatSgd {
  T gradient_factor = 1, weight_decay = 0, learning_rate = 0, momentum = 0;
  bool nesterov = false;
};
template <class T>
void flat_sgd(const FlatArrays<T>& a, const FlatSgd<T>& step, cudaStream_t stream);

// *sum += the squares of `values`, in fp64 and in a fixed order; `parts` are kSquareParts doubles to work with.
constexpr int kSquareParts = 1024;
template <class T>  // float, double or Bf16
void add_squares(const T* values, std::int64_t count, double* parts, double* sum, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
