#include "lockstep/kernels/bias_gelu.h"

#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels {
namespace {

// gelu_tanh(v) = v/2 (1 + tanh(u)) = v * sigmoid(2u) with u = sqrt(2/pi) (v + 0.044715 v^3): no tanh is needed.
template <typename T>
constexpr T kTwoSqrtTwoOverPi = T(1.5957691216057307117597842397375);
template <typename T>
constexpr T kCubic = T(0.044715);

template <typename T>
LOCKSTEP_INLINE void forward_rows(const T* x, const T* bias, T* y, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r, x += cols, y += cols) {
#pragma omp simd
    for (std::int64_t c = 0; c < cols; ++c) {
      const T v = bias ? x[c] + bias[c] : x[c];
      y[c] = v * vsigmoid(kTwoSqrtTwoOverPi<T> * v * (T(1) + kCubic<T> * v * v));
    }
  }
}

// d/dv [v s(2u)] = s + v s (1 - s) 2u'.
template <bool kWithValue, typename T>
LOCKSTEP_INLINE void backward_row(const T* x, const T* bias, const T* dy, T* dx, T* y, std::int64_t cols) {
#pragma omp simd
  for (std::int64_t c = 0; c < cols; ++c) {
    const T v = bias ? x[c] + bias[c] : x[c];
    const T square = v * v;
    const T s = vsigmoid(kTwoSqrtTwoOverPi<T> * v * (T(1) + kCubic<T> * square));
    const T slope = kTwoSqrtTwoOverPi<T> * (T(1) + T(3) * kCubic<T> * square);
    if constexpr (kWithValue) y[c] = v * s;
    dx[c] = dy[c] * (s + v * s * (T(1) - s) * slope);
  }
}

template <typename T>
LOCKSTEP_INLINE void backward_rows(const T* x, const T* bias, const T* dy, T* dx, T* y, T* dbias, std::int64_t rows,
                                   std::int64_t cols) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const std::int64_t at = r * cols;
    if (y) {
      backward_row<true>(x + at, bias, dy + at, dx + at, y + at, cols);
    } else {
      backward_row<false>(x + at, bias, dy + at, dx + at, y, cols);
    }
    if (!dbias) continue;
#pragma omp simd
    for (std::int64_t c = 0; c < cols; ++c) dbias[c] += dx[at + c];
  }
}

}  // namespace

LOCKSTEP_MULTIVERSION void bias_gelu_forward(const float* x, const float* bias, float* y, std::int64_t rows,
                                             std::int64_t cols) {
  forward_rows(x, bias, y, rows, cols);
}

LOCKSTEP_MULTIVERSION void bias_gelu_forward(const double* x, const double* bias, double* y, std::int64_t rows,
                                             std::int64_t cols) {
  forward_rows(x, bias, y, rows, cols);
}

LOCKSTEP_MULTIVERSION void bias_gelu_backward(const float* x, const float* bias, const float* dy, float* dx, float* y,
                                              float* dbias, std::int64_t rows, std::int64_t cols) {
  backward_rows(x, bias, dy, dx, y, dbias, rows, cols);
}

LOCKSTEP_MULTIVERSION void bias_gelu_backward(const double* x, const double* bias, const double* dy, double* dx,
                                              double* y, double* dbias, std::int64_t rows, std::int64_t cols) {
  backward_rows(x, bias, dy, dx, y, dbias, rows, cols);
}

}  // namespace lockstep::kernels
