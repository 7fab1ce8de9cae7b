// Mamba's two operations along the sequence (Gu and Dao 2023), differentiable in every tensor. On the CPU they take the
// kernels of lockstep/kernels (bf16 and fp16 compute in fp32); other devices take ATen. Only first derivatives exist.
#pragma once

#include <torch/types.h>

namespace lockstep::nn {

struct ScanResult {
  torch::Tensor y;            // [batch, seq, channels], x's dtype
  torch::Tensor final_state;  // [batch, channels, state], initial_state's dtype
};

// For each sample and channel, from h = initial_state on:
//   h_t = exp(dt_t A) h_{t-1} + dt_t x_t B_t        y_t = C_t . h_t + D x_t
// x, dt [batch, seq, channels]; A [channels, state]; B, C [batch, seq, state]; D [channels]. States of every 64th step
// are kept for backward, never those of all steps. Results do not depend on the number of threads.
ScanResult selective_scan(const torch::Tensor& x, const torch::Tensor& dt, const torch::Tensor& A,
                          const torch::Tensor& B, const torch::Tensor& C, const torch::Tensor& D,
                          const torch::Tensor& initial_state);

// The same by ATen operations alone, for devices without a kernel: 64 steps at a time in six rounds over [batch, 64,
// channels, state] (Hillis and Steele 1986). About a hundred launches where a fused kernel needs one: right, not fast.
ScanResult selective_scan_by_aten(const torch::Tensor& x, const torch::Tensor& dt, const torch::Tensor& A,
                                  const torch::Tensor& B, const torch::Tensor& C, const torch::Tensor& D,
                                  const torch::Tensor& initial_state);

// silu(bias + sum_j weight[:, 0, j] x[:, t + j]) for each t: a causal convolution of each channel on its own. x [batch,
// taps - 1 + seq, channels] begins with the taps - 1 rows before the first result; weight [channels, 1, taps]; bias
// [channels]. Returns [batch, seq, channels].
torch::Tensor causal_conv_silu(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias);

}  // namespace lockstep::nn
