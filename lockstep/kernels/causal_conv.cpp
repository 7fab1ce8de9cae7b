#include "lockstep/kernels/causal_conv.h"

#include <algorithm>

#include "lockstep/kernels/parallel_blocks.h"
#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels {
namespace {

// Channels of one sample that a thread takes through the whole sequence.
constexpr std::int64_t kWidth = 64;

struct Columns {
  std::int64_t sample;
  std::int64_t first;
  std::int64_t width;
};

// sum[l] = bias + taps of the result's row t, which begin at x's row t.
template <typename T>
LOCKSTEP_INLINE void convolve_row(const ConvShape& s, const T* __restrict x, const T* __restrict weight,
                                  const T* __restrict bias, std::int64_t width, T* __restrict sum) {
  for (std::int64_t l = 0; l < width; ++l) sum[l] = bias[l];
  for (std::int64_t j = 0; j < s.taps; ++j) {
#pragma omp simd
    for (std::int64_t l = 0; l < width; ++l) sum[l] += weight[j * s.channels + l] * x[j * s.channels + l];
  }
}

template <typename T>
LOCKSTEP_INLINE void forward_columns(const ConvShape& s, const T* x, const T* weight, const T* bias, T* y,
                                     const Columns& at) {
  T sum[kWidth];
  const T* rows = x + at.sample * (s.taps - 1 + s.seq) * s.channels + at.first;
  T* results = y + at.sample * s.seq * s.channels + at.first;
  for (std::int64_t t = 0; t < s.seq; ++t) {
    convolve_row(s, rows + t * s.channels, weight + at.first, bias + at.first, at.width, sum);
    T* __restrict out = results + t * s.channels;
#pragma omp simd
    for (std::int64_t l = 0; l < at.width; ++l) out[l] = sum[l] * vsigmoid(sum[l]);
  }
}

template <typename T>
LOCKSTEP_INLINE void backward_columns(const ConvShape& s, const T* x, const T* weight, const T* bias, const T* dy,
                                      T* dx, T* dweight, T* dbias, const Columns& at) {
  T sum[kWidth], dsum[kWidth];
  const std::int64_t padded = at.sample * (s.taps - 1 + s.seq) * s.channels + at.first;
  const T* __restrict w = weight + at.first;
  T* __restrict dw = dweight + at.sample * s.taps * s.channels + at.first;
  T* __restrict db = dbias + at.sample * s.channels + at.first;
  for (std::int64_t t = 0; t < s.seq; ++t) {
    const T* __restrict rows = x + padded + t * s.channels;
    T* __restrict drows = dx + padded + t * s.channels;
    const T* __restrict dout = dy + (at.sample * s.seq + t) * s.channels + at.first;
    convolve_row(s, rows, w, bias + at.first, at.width, sum);
#pragma omp simd
    for (std::int64_t l = 0; l < at.width; ++l) {
      const T sigmoid = vsigmoid(sum[l]);
      dsum[l] = dout[l] * sigmoid * (T(1) + sum[l] * (T(1) - sigmoid));
      db[l] += dsum[l];
    }
    for (std::int64_t j = 0; j < s.taps; ++j) {
      const std::int64_t row = j * s.channels;
#pragma omp simd
      for (std::int64_t l = 0; l < at.width; ++l) {
        drows[row + l] += w[row + l] * dsum[l];
        dw[row + l] += rows[row + l] * dsum[l];
      }
    }
  }
}

LOCKSTEP_MULTIVERSION void conv_columns(const ConvShape& s, const float* x, const float* weight, const float* bias,
                                        float* y, const Columns& at) {
  forward_columns(s, x, weight, bias, y, at);
}

LOCKSTEP_MULTIVERSION void conv_columns(const ConvShape& s, const double* x, const double* weight, const double* bias,
                                        double* y, const Columns& at) {
  forward_columns(s, x, weight, bias, y, at);
}

LOCKSTEP_MULTIVERSION void conv_columns_back(const ConvShape& s, const float* x, const float* weight, const float* bias,
                                             const float* dy, float* dx, float* dweight, float* dbias,
                                             const Columns& at) {
  backward_columns(s, x, weight, bias, dy, dx, dweight, dbias, at);
}

LOCKSTEP_MULTIVERSION void conv_columns_back(const ConvShape& s, const double* x, const double* weight,
                                             const double* bias, const double* dy, double* dx, double* dweight,
                                             double* dbias, const Columns& at) {
  backward_columns(s, x, weight, bias, dy, dx, dweight, dbias, at);
}

template <typename Body>
void for_columns(const ConvShape& shape, const Body& body) {
  const std::int64_t parts = (shape.channels + kWidth - 1) / kWidth;
  parallel_blocks(shape.batch * parts, [&](std::int64_t block) {
    const std::int64_t first = block % parts * kWidth;
    body(Columns{block / parts, first, std::min(kWidth, shape.channels - first)});
  });
}

}  // namespace

void causal_conv_silu_forward(const ConvShape& shape, const float* x, const float* weight, const float* bias,
                              float* y) {
  for_columns(shape, [&](const Columns& at) { conv_columns(shape, x, weight, bias, y, at); });
}

void causal_conv_silu_forward(const ConvShape& shape, const double* x, const double* weight, const double* bias,
                              double* y) {
  for_columns(shape, [&](const Columns& at) { conv_columns(shape, x, weight, bias, y, at); });
}

void causal_conv_silu_backward(const ConvShape& shape, const float* x, const float* weight, const float* bias,
                               const float* dy, float* dx, float* dweight, float* dbias) {
  for_columns(shape, [&](const Columns& at) { conv_columns_back(shape, x, weight, bias, dy, dx, dweight, dbias, at); });
}

void causal_conv_silu_backward(const ConvShape& shape, const double* x, const double* weight, const double* bias,
                               const double* dy, double* dx, double* dweight, double* dbias) {
  for_columns(shape, [&](const Columns& at) { conv_columns_back(shape, x, weight, bias, dy, dx, dweight, dbias, at); });
}

}  // namespace lockstep::kernels
