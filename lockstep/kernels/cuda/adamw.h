// AdamW (Loshchilov & Hutter 2019) over flat arrays, and the gradient's norm.
//
// The fp32 master weight is kept exactly in two halves: the bf16 weight that the model computes with (the master
// rounded to nearest, ties up) and a 16-bit remainder, master bits = weight bits * 65536 + remainder. Weight and
// master together cost 4 bytes.
#pragma once

#include "lockstep/kernels/cuda/types.h"

namespace lockstep::kernels::cuda {

// What changes from step to step, in device memory, so that a captured graph can be replayed.
struct AdamWStep {
  float learning_rate = 0;
  float beta1 = 0.9f, beta2 = 0.999f, epsilon = 1e-8f;
  float correction1 = 1, correction2_root = 1;  // 1 - beta1^t, sqrt(1 - beta2^t)
  std::uint32_t seed = 0;                       // of stochastic rounding; another one every step
};
AdamWStep adamw_step(double learning_rate, double beta1, double beta2, double epsilon, std::int64_t step);

template <class Gradient, class State>  // each float or Bf16; Bf16 states are rounded stochastically
struct AdamW {
  Bf16* weight = nullptr;
  std::int16_t* remainder = nullptr;
  State* m = nullptr;
  State* v = nullptr;
  const Gradient* gradient = nullptr;
  const AdamWStep* step = nullptr;         // device
  const float* gradient_factor = nullptr;  // device: the clip factor; null: 1. NaN: nothing is changed
  float weight_decay = 0;
  std::int64_t count = 0;        // a multiple of 8
  std::int64_t first_index = 0;  // place in the whole, so that the rounding of a part does not depend on the split
};
template <class Gradient, class State>
void adamw(const AdamW<Gradient, State>& a, cudaStream_t stream);

// weight and remainder from fp32 values and back.
void split_master(const float* master, Bf16* weight, std::int16_t* remainder, std::int64_t count, cudaStream_t stream);
void join_master(const Bf16* weight, const std::int16_t* remainder, float* master, std::int64_t count,
                 cudaStream_t stream);

// Sum of squares in a fixed order: parts[0 .. kNormParts) of each call are summed by gradient_clip. count: any.
constexpr int kNormParts = 1024;
template <class Gradient>
void sum_of_squares(const Gradient* gradient, std::int64_t count, float* parts, cudaStream_t stream);
// *norm = sqrt(sum of `groups` * kNormParts parts); *factor = min(1, limit / (norm + 1e-6)), 1 where limit <= 0, NaN
// where the norm is not finite: adamw() then changes nothing.
void gradient_clip(const float* parts, int groups, float limit, float* norm, float* factor, cudaStream_t stream);

}  // namespace lockstep::kernels::cuda
