// Inner loops of the CPU kernels over one stretch of memory. Free of libtorch, compiled once per instruction set and
// chosen at run time; one thread. Arrays do not overlap.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

// Constants of one AdamW step (fused_optimizer.h has the formula), already in the dtype of the arrays.
template <typename T>
struct AdamWConstants {
  T gradient_factor;
  T keep;  // 1 - learning_rate * weight_decay, or 1 where nothing decays
  T beta1;
  T one_minus_beta1;
  T beta2;
  T one_minus_beta2;
  T inverse_root_correction2;  // 1 / sqrt(1 - beta2^t)
  T epsilon;
  T step_size;  // learning_rate / (1 - beta1^t)
};

template <typename T>
struct SgdConstants {
  T gradient_factor;
  T weight_decay;  // 0 where nothing decays
  T learning_rate;
  T momentum;
  bool nesterov;
};

void adamw_stretch(float* p, const float* g, float* m, float* v, std::int64_t n, const AdamWConstants<float>& c);
void adamw_stretch(double* p, const double* g, double* m, double* v, std::int64_t n, const AdamWConstants<double>& c);

// `b` is null when there is no momentum.
void sgd_stretch(float* p, const float* g, float* b, std::int64_t n, const SgdConstants<float>& c);
void sgd_stretch(double* p, const double* g, double* b, std::int64_t n, const SgdConstants<double>& c);

// Sum of squares in fp64: lane i adds the elements i, i + kNormLanes, ...; lanes are added pairwise at the end.
inline constexpr int kNormLanes = 16;
double squared_sum(const float* x, std::int64_t n);
double squared_sum(const double* x, std::int64_t n);

// Bits of bfloat16 and IEEE half, rounded to nearest even; overflow becomes infinity, NaN stays NaN.
void round_to_bf16(const float* x, std::uint16_t* out, std::int64_t n);
void round_to_fp16(const float* x, std::uint16_t* out, std::int64_t n);

}  // namespace lockstep::kernels
