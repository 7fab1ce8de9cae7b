// Root-mean-square normalisation of rows (Zhang & Sennrich 2019), y = weight * x * rstd, rstd = 1/sqrt(mean(x^2) +
// eps). Serial, the caller splits rows over threads.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

// rstd [rows] is kept for backward.
void rms_norm_forward(const float* x, const float* weight, float* y, float* rstd, double epsilon, std::int64_t rows,
                      std::int64_t cols);
void rms_norm_forward(const double* x, const double* weight, double* y, double* rstd, double epsilon, std::int64_t rows,
                      std::int64_t cols);

// dweight [cols] is added to. dx may be dy.
void rms_norm_backward(const float* x, const float* weight, const float* rstd, const float* dy, float* dx,
                       float* dweight, std::int64_t rows, std::int64_t cols);
void rms_norm_backward(const double* x, const double* weight, const double* rstd, const double* dy, double* dx,
                       double* dweight, std::int64_t rows, std::int64_t cols);

}  // namespace lockstep::kernels
