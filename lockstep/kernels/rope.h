// Rotary position embedding (Su et al. 2021) of one [rows, dim] block in the rotate_half convention: element i is
// paired with i + dim/2 and rotated by the angle of (row, i). Serial.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

// Row r of x begins at x + r * x_stride, of y at y + r * y_stride (elements). cos and sin [rows, dim/2]. `direction`
// +1 rotates forward, -1 back (the gradient). y may be x.
void rope_rotate(const float* x, std::int64_t x_stride, float* y, std::int64_t y_stride, const float* cos,
                 const float* sin, int direction, std::int64_t rows, std::int64_t dim);
void rope_rotate(const double* x, std::int64_t x_stride, double* y, std::int64_t y_stride, const double* cos,
                 const double* sin, int direction, std::int64_t rows, std::int64_t dim);

}  // namespace lockstep::kernels
