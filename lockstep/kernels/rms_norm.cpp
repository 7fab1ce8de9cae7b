#include "lockstep/kernels/rms_norm.h"

#include <cmath>

#include "lockstep/kernels/multiversion.h"

namespace lockstep::kernels {
namespace {

template <typename T>
LOCKSTEP_INLINE void forward(const T* x, const T* weight, T* y, T* rstd, double epsilon, std::int64_t rows,
                             std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
    T squares = 0;
#pragma omp simd reduction(+ : squares)
    for (std::int64_t c = 0; c < cols; ++c) squares += x[c] * x[c];
    const T scale = T(1) / std::sqrt(squares / T(cols) + T(epsilon));
    rstd[r] = scale;
#pragma omp simd
    for (std::int64_t c = 0; c < cols; ++c) y[c] = weight[c] * (x[c] * scale);
  }
}

// dx = rstd * (w dy) - x * rstd^3 / cols * sum(w dy x).
template <typename T>
LOCKSTEP_INLINE void backward(const T* x, const T* weight, const T* rstd, const T* dy, T* dx, T* dweight,
                              std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r, x += cols, dy += cols, dx += cols) {
    const T scale = rstd[r];
    T dot = 0;
#pragma omp simd reduction(+ : dot)
    for (std::int64_t c = 0; c < cols; ++c) dot += weight[c] * dy[c] * x[c];
    const T along = dot * scale * scale * scale / T(cols);
#pragma omp simd
    for (std::int64_t c = 0; c < cols; ++c) {
      const T d = dy[c];
      dweight[c] += d * x[c] * scale;
      dx[c] = scale * weight[c] * d - x[c] * along;
    }
  }
}

}  // namespace

LOCKSTEP_MULTIVERSION void rms_norm_forward(const float* x, const float* weight, float* y, float* rstd, double epsilon,
                                            std::int64_t rows, std::int64_t cols) {
  forward(x, weight, y, rstd, epsilon, rows, cols);
}

LOCKSTEP_MULTIVERSION void rms_norm_forward(const double* x, const double* weight, double* y, double* rstd,
                                            double epsilon, std::int64_t rows, std::int64_t cols) {
  forward(x, weight, y, rstd, epsilon, rows, cols);
}

LOCKSTEP_MULTIVERSION void rms_norm_backward(const float* x, const float* weight, const float* rstd, const float* dy,
                                             float* dx, float* dweight, std::int64_t rows, std::int64_t cols) {
  backward(x, weight, rstd, dy, dx, dweight, rows, cols);
}

LOCKSTEP_MULTIVERSION void rms_norm_backward(const double* x, const double* weight, const double* rstd,
                                             const double* dy, double* dx, double* dweight, std::int64_t rows,
                                             std::int64_t cols) {
  backward(x, weight, rstd, dy, dx, dweight, rows, cols);
}

}  // namespace lockstep::kernels
