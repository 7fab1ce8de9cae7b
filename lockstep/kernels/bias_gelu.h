// y = gelu_tanh(x + bias), Hugging Face's "gelu_new", over rows of a [rows, cols] matrix; serial, the caller splits
// rows over threads. `bias` may be null. Buffers do not overlap unless stated.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

void bias_gelu_forward(const float* x, const float* bias, float* y, std::int64_t rows, std::int64_t cols);
void bias_gelu_forward(const double* x, const double* bias, double* y, std::int64_t rows, std::int64_t cols);

// dx = dy * gelu'(x + bias); dx may be dy. `y`, unless null, gets the forward value again (so it need not be kept).
// `dbias` [cols], unless null, has the column sums of dx added to it.
void bias_gelu_backward(const float* x, const float* bias, const float* dy, float* dx, float* y, float* dbias,
                        std::int64_t rows, std::int64_t cols);
void bias_gelu_backward(const double* x, const double* bias, const double* dy, double* dx, double* y, double* dbias,
                        std::int64_t rows, std::int64_t cols);

}  // namespace lockstep::kernels
