#include "lockstep/kernels/attention_rows.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/kernels/vector_math.h"

namespace lockstep::kernels {
namespace {

template <typename T>
LOCKSTEP_INLINE void softmax(T* scores, T* lse, std::int64_t rows, std::int64_t cols, std::int64_t first_valid) {
  for (std::int64_t i = 0; i < rows; ++i, scores += cols) {
    const std::int64_t valid = std::min(first_valid + i, cols);
    const T highest = row_max(scores, valid);
    const T sum = exponentiate(scores, highest, valid);
    const T inverse = T(1) / sum;
#pragma omp simd
    for (std::int64_t c = 0; c < valid; ++c) scores[c] *= inverse;
    std::fill(scores + valid, scores + cols, T(0));
    lse[i] = highest + std::log(sum);
  }
}

template <typename T>
LOCKSTEP_INLINE void probabilities(T* scores, const T* lse, std::int64_t rows, std::int64_t cols,
                                   std::int64_t first_valid) {
  for (std::int64_t i = 0; i < rows; ++i, scores += cols) {
    const std::int64_t valid = std::min(first_valid + i, cols);
    const T offset = lse[i];
#pragma omp simd
    for (std::int64_t c = 0; c < valid; ++c) scores[c] = vexp(scores[c] - offset);
    std::fill(scores + valid, scores + cols, T(0));
  }
}

struct ValidRange {
  std::int64_t begin, end;
};

LOCKSTEP_INLINE ValidRange window_of_row(std::int64_t begin, std::int64_t end, std::int64_t cols) {
  const std::int64_t last = std::clamp<std::int64_t>(end, 0, cols);
  return {std::clamp<std::int64_t>(begin, 0, last), last};
}

template <typename T>
LOCKSTEP_INLINE void window_softmax(T* scores, T* lse, std::int64_t rows, std::int64_t cols, std::int64_t first_begin,
                                    std::int64_t first_valid) {
  for (std::int64_t i = 0; i < rows; ++i, scores += cols) {
    const auto [begin, end] = window_of_row(first_begin + i, first_valid + i, cols);
    if (begin < end) {
      softmax(scores + begin, lse + i, 1, end - begin, end - begin);
    } else {
      lse[i] = -std::numeric_limits<T>::infinity();
    }
    std::fill(scores, scores + begin, T(0));
    std::fill(scores + end, scores + cols, T(0));
  }
}

template <typename T>
LOCKSTEP_INLINE void window_probabilities(T* scores, const T* lse, std::int64_t rows, std::int64_t cols,
                                          std::int64_t first_begin, std::int64_t first_valid) {
  for (std::int64_t i = 0; i < rows; ++i, scores += cols) {
    const auto [begin, end] = window_of_row(first_begin + i, first_valid + i, cols);
    probabilities(scores + begin, lse + i, 1, end - begin, end - begin);
    std::fill(scores, scores + begin, T(0));
    std::fill(scores + end, scores + cols, T(0));
  }
}

template <typename T>
void cap_all(T* scores, std::int64_t count, T cap) {
  const T inverse = T(1) / cap;
  for (std::int64_t i = 0; i < count; ++i) scores[i] = cap * std::tanh(scores[i] * inverse);
}

template <typename T>
LOCKSTEP_INLINE void cap_gradient(const T* capped, T* gradient, std::int64_t count, T cap) {
  const T inverse = T(1) / cap;
#pragma omp simd
  for (std::int64_t i = 0; i < count; ++i) {
    const T slope = capped[i] * inverse;
    gradient[i] *= T(1) - slope * slope;
  }
}

template <typename T>
LOCKSTEP_INLINE void backward(const T* prob, T* dprob, const T* delta, T scale, std::int64_t rows, std::int64_t cols) {
  for (std::int64_t i = 0; i < rows; ++i, prob += cols, dprob += cols) {
    const T offset = delta[i];
#pragma omp simd
    for (std::int64_t c = 0; c < cols; ++c) dprob[c] = prob[c] * (dprob[c] - offset) * scale;
  }
}

template <typename T>
LOCKSTEP_INLINE void dots(const T* a, std::int64_t a_stride, const T* b, std::int64_t b_stride, T* out,
                          std::int64_t rows, std::int64_t cols) {
  for (std::int64_t i = 0; i < rows; ++i, a += a_stride, b += b_stride) {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (std::int64_t c = 0; c < cols; ++c) sum += a[c] * b[c];
    out[i] = sum;
  }
}

}  // namespace

LOCKSTEP_MULTIVERSION void causal_softmax_rows(float* scores, float* lse, std::int64_t rows, std::int64_t cols,
                                               std::int64_t first_valid) {
  softmax(scores, lse, rows, cols, first_valid);
}

LOCKSTEP_MULTIVERSION void causal_softmax_rows(double* scores, double* lse, std::int64_t rows, std::int64_t cols,
                                               std::int64_t first_valid) {
  softmax(scores, lse, rows, cols, first_valid);
}

LOCKSTEP_MULTIVERSION void causal_probability_rows(float* scores, const float* lse, std::int64_t rows,
                                                   std::int64_t cols, std::int64_t first_valid) {
  probabilities(scores, lse, rows, cols, first_valid);
}

LOCKSTEP_MULTIVERSION void causal_probability_rows(double* scores, const double* lse, std::int64_t rows,
                                                   std::int64_t cols, std::int64_t first_valid) {
  probabilities(scores, lse, rows, cols, first_valid);
}

LOCKSTEP_MULTIVERSION void window_softmax_rows(float* scores, float* lse, std::int64_t rows, std::int64_t cols,
                                               std::int64_t first_begin, std::int64_t first_valid) {
  window_softmax(scores, lse, rows, cols, first_begin, first_valid);
}

LOCKSTEP_MULTIVERSION void window_probability_rows(float* scores, const float* lse, std::int64_t rows,
                                                   std::int64_t cols, std::int64_t first_begin,
                                                   std::int64_t first_valid) {
  window_probabilities(scores, lse, rows, cols, first_begin, first_valid);
}

void cap_scores(float* scores, std::int64_t count, float cap) { cap_all(scores, count, cap); }

LOCKSTEP_MULTIVERSION void cap_backward(const float* capped, float* gradient, std::int64_t count, float cap) {
  cap_gradient(capped, gradient, count, cap);
}

LOCKSTEP_MULTIVERSION void window_softmax_rows(double* scores, double* lse, std::int64_t rows, std::int64_t cols,
                                               std::int64_t first_begin, std::int64_t first_valid) {
  window_softmax(scores, lse, rows, cols, first_begin, first_valid);
}

LOCKSTEP_MULTIVERSION void window_probability_rows(double* scores, const double* lse, std::int64_t rows,
                                                   std::int64_t cols, std::int64_t first_begin,
                                                   std::int64_t first_valid) {
  window_probabilities(scores, lse, rows, cols, first_begin, first_valid);
}

void cap_scores(double* scores, std::int64_t count, double cap) { cap_all(scores, count, cap); }

LOCKSTEP_MULTIVERSION void cap_backward(const double* capped, double* gradient, std::int64_t count, double cap) {
  cap_gradient(capped, gradient, count, cap);
}

LOCKSTEP_MULTIVERSION void softmax_backward_rows(const float* prob, float* dprob, const float* delta, float scale,
                                                 std::int64_t rows, std::int64_t cols) {
  backward(prob, dprob, delta, scale, rows, cols);
}

LOCKSTEP_MULTIVERSION void softmax_backward_rows(const double* prob, double* dprob, const double* delta, double scale,
                                                 std::int64_t rows, std::int64_t cols) {
  backward(prob, dprob, delta, scale, rows, cols);
}

LOCKSTEP_MULTIVERSION void row_dots(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride,
                                    float* out, std::int64_t rows, std::int64_t cols) {
  dots(a, a_stride, b, b_stride, out, rows, cols);
}

LOCKSTEP_MULTIVERSION void row_dots(const double* a, std::int64_t a_stride, const double* b, std::int64_t b_stride,
                                    double* out, std::int64_t rows, std::int64_t cols) {
  dots(a, a_stride, b, b_stride, out, rows, cols);
}

}  // namespace lockstep::kernels
