// The element-wise halves of attention, on one block of score rows; the products between them are BLAS calls. Row i of
// a block has `first_valid + i` valid scores (causal), at most `cols`; the rest is masked. first_valid = cols masks
// nothing. Serial.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

// In place: scores [rows, cols] become probabilities (masked ones 0); lse[i] = log(sum(exp(row i))).
void causal_softmax_rows(float* scores, float* lse, std::int64_t rows, std::int64_t cols, std::int64_t first_valid);
void causal_softmax_rows(double* scores, double* lse, std::int64_t rows, std::int64_t cols, std::int64_t first_valid);

// The same probabilities from the scores and lse, for backward.
void causal_probability_rows(float* scores, const float* lse, std::int64_t rows, std::int64_t cols,
                             std::int64_t first_valid);
void causal_probability_rows(double* scores, const double* lse, std::int64_t rows, std::int64_t cols,
                             std::int64_t first_valid);

// The same two for rows that see a window of keys: of row i the scores [first_begin + i, first_valid + i) are valid,
// cut to [0, cols). A row without any gets probabilities of 0 and an lse of -infinity.
void window_softmax_rows(float* scores, float* lse, std::int64_t rows, std::int64_t cols, std::int64_t first_begin,
                         std::int64_t first_valid);
void window_softmax_rows(double* scores, double* lse, std::int64_t rows, std::int64_t cols, std::int64_t first_begin,
                         std::int64_t first_valid);
void window_probability_rows(float* scores, const float* lse, std::int64_t rows, std::int64_t cols,
                             std::int64_t first_begin, std::int64_t first_valid);
void window_probability_rows(double* scores, const double* lse, std::int64_t rows, std::int64_t cols,
                             std::int64_t first_begin, std::int64_t first_valid);

// In place: cap x tanh(score / cap). And in place over the gradient of such scores: that of the scores before.
void cap_scores(float* scores, std::int64_t count, float cap);
void cap_scores(double* scores, std::int64_t count, double cap);
void cap_backward(const float* capped, float* gradient, std::int64_t count, float cap);
void cap_backward(const double* capped, double* gradient, std::int64_t count, double cap);

// In place over dprob: gradient of the scores, prob * (dprob - delta[i]) * scale.
void softmax_backward_rows(const float* prob, float* dprob, const float* delta, float scale, std::int64_t rows,
                           std::int64_t cols);
void softmax_backward_rows(const double* prob, double* dprob, const double* delta, double scale, std::int64_t rows,
                           std::int64_t cols);

// out[i] = dot(a row i, b row i) over `cols`; rows begin every a_stride, b_stride elements.
void row_dots(const float* a, std::int64_t a_stride, const float* b, std::int64_t b_stride, float* out,
              std::int64_t rows, std::int64_t cols);
void row_dots(const double* a, std::int64_t a_stride, const double* b, std::int64_t b_stride, double* out,
              std::int64_t rows, std::int64_t cols);

}  // namespace lockstep::kernels
