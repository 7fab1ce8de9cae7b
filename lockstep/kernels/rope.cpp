#include "lockstep/kernels/rope.h"

#include "lockstep/kernels/multiversion.h"

namespace lockstep::kernels {
namespace {

template <typename T>
LOCKSTEP_INLINE void rotate(const T* x, std::int64_t x_stride, T* y, std::int64_t y_stride, const T* cos, const T* sin,
                            int direction, std::int64_t rows, std::int64_t dim) {
  const std::int64_t half = dim / 2;
  const T sign = T(direction);
  for (std::int64_t r = 0; r < rows; ++r, x += x_stride, y += y_stride, cos += half, sin += half) {
#pragma omp simd
    for (std::int64_t i = 0; i < half; ++i) {
      const T first = x[i];
      const T second = x[i + half];
      const T s = sign * sin[i];
      y[i] = first * cos[i] - second * s;
      y[i + half] = second * cos[i] + first * s;
    }
  }
}

}  // namespace

LOCKSTEP_MULTIVERSION void rope_rotate(const float* x, std::int64_t x_stride, float* y, std::int64_t y_stride,
                                       const float* cos, const float* sin, int direction, std::int64_t rows,
                                       std::int64_t dim) {
  rotate(x, x_stride, y, y_stride, cos, sin, direction, rows, dim);
}

LOCKSTEP_MULTIVERSION void rope_rotate(const double* x, std::int64_t x_stride, double* y, std::int64_t y_stride,
                                       const double* cos, const double* sin, int direction, std::int64_t rows,
                                       std::int64_t dim) {
  rotate(x, x_stride, y, y_stride, cos, sin, direction, rows, dim);
}

}  // namespace lockstep::kernels
