// A causal convolution along the sequence, each channel on its own, followed by SiLU (Mamba, Gu and Dao 2023):
//   y_t = silu(bias + sum_j weight_j x_{t + j})        j = 0 .. taps - 1
// where x begins with the taps - 1 rows before the first result, so the last tap is the present. Everything is
// contiguous. Work is spread over parallel_blocks; no result depends on the number of threads.
#pragma once

#include <cstdint>

namespace lockstep::kernels {

struct ConvShape {
  std::int64_t batch = 0;
  std::int64_t seq = 0;  // rows of y
  std::int64_t channels = 0;
  std::int64_t taps = 0;
};

// x [batch, taps - 1 + seq, channels], weight [taps, channels], bias [channels], y [batch, seq, channels].
void causal_conv_silu_forward(const ConvShape& shape, const float* x, const float* weight, const float* bias, float* y);
void causal_conv_silu_forward(const ConvShape& shape, const double* x, const double* weight, const double* bias,
                              double* y);

// All gradients are added to, dweight and dbias per sample: dx as x, dweight [batch, taps, channels], dbias [batch,
// channels].
void causal_conv_silu_backward(const ConvShape& shape, const float* x, const float* weight, const float* bias,
                               const float* dy, float* dx, float* dweight, float* dbias);
void causal_conv_silu_backward(const ConvShape& shape, const double* x, const double* weight, const double* bias,
                               const double* dy, double* dx, double* dweight, double* dbias);

}  // namespace lockstep::kernels
