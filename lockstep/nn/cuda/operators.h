// The kernels of kernels/cuda on tensors: values and gradients, nothing differentiable. Autograd functions that use
// them are in functional.cpp, attention.cpp and encoder_block.cpp. A build without CUDA has stubs: the questions say
// no, the rest throws InternalError. Work is queued on libtorch's current stream; nothing here waits for the device.
#pragma once

#include <cstdint>

#include <torch/types.h>

#include "lockstep/nn/random.h"

namespace lockstep::nn::cuda {

// Whether the kernels take rows like these: on CUDA, bf16, the last dim a multiple of 8 and at most 8192 for norms.
bool takes(const torch::Tensor& x);
// dropout() takes fp32 too, and any length of the last dim that is a multiple of 8.
bool takes_dropout(const torch::Tensor& x);
// Fused attention: on CUDA, bf16 or fp16, heads of up to 128, a multiple of 8.
bool takes_attention(const torch::Tensor& q);

// fill_normal() of random.h on the device, in place; false where it must be drawn on the host (not on CUDA, not
// contiguous, fp16).
bool fill_normal(torch::Tensor& tensor, double mean, double std, const PhiloxKey& key, std::int64_t first);

// Where a mask of [samples, rows, features] is drawn (random.h).
struct Drop {
  double probability = 0.0;  // 0: nothing is dropped
  DropoutSite site;
  torch::Tensor positions;           // as dropout_multipliers'; undefined: all rows, in order
  std::int64_t rows_per_sample = 1;  // of the flattened matrix
};

// residual + mask * (x + bias); residual and bias may be undefined. Shaped like x.
torch::Tensor dropout(const torch::Tensor& x, const torch::Tensor& bias, const torch::Tensor& residual,
                      const Drop& drop);

// layer_norm(residual + dropout(x + bias)) of [rows, cols] matrices.
struct AddNorm {
  torch::Tensor y, sum;      // [rows, cols]
  torch::Tensor mean, rstd;  // [rows], fp32
  torch::Tensor kept;        // the mask in bits; undefined where backward draws it again
};
AddNorm add_norm(const torch::Tensor& x, const torch::Tensor& bias, const torch::Tensor& residual,
                 const torch::Tensor& norm_weight, const torch::Tensor& norm_bias, double epsilon, const Drop& drop);
struct AddNormGradients {
  torch::Tensor residual, x;                   // the same tensor where nothing is dropped
  torch::Tensor norm_weight, norm_bias, bias;  // [cols]
};
AddNormGradients add_norm_backward(const torch::Tensor& dy, const torch::Tensor& sum, const torch::Tensor& mean,
                                   const torch::Tensor& rstd, const torch::Tensor& kept,
                                   const torch::Tensor& norm_weight, const Drop& drop);

// gelu(x + bias) of [rows, cols]; bias may be undefined.
enum class Gelu { kTanh, kErf };
torch::Tensor gelu(const torch::Tensor& x, const torch::Tensor& bias, Gelu kind);
// Overwrites dy with the gradient of x; returns that of the bias (undefined without).
torch::Tensor gelu_backward(const torch::Tensor& x, const torch::Tensor& bias, torch::Tensor& dy, Gelu kind);

// silu(gate) * up of [rows, 2 cols], gate before up in each row.
torch::Tensor swiglu(const torch::Tensor& gate_up);
// Overwrites dh with the forward value; returns the gradient of gate_up.
torch::Tensor swiglu_backward(const torch::Tensor& gate_up, torch::Tensor& dh);

// rope() of functional.h on bf16 [batch, seq, heads, head_dim]; `inverse` rotates back. takes_rope: head_dim is a
// multiple of 16.
bool takes_rope(const torch::Tensor& x, const torch::Tensor& cos);
torch::Tensor rope(const torch::Tensor& x, const torch::Tensor& cos, const torch::Tensor& sin, bool inverse);

// Sums of the columns of [rows, cols].
torch::Tensor column_sums(const torch::Tensor& x);

// Three [rows, cols] side by side, [rows, 3 cols], and the sums of its columns.
struct Joined {
  torch::Tensor matrix, sums;
};
Joined join_columns(const torch::Tensor& a, const torch::Tensor& b, const torch::Tensor& c);

// Cross-entropy over rows of bf16 logits [rows, classes], which become the gradient of the sum of the losses. target
// int64 [rows], -100 ignored. Returns the losses, fp32 [rows]. takes_logits: enough classes, a multiple of 8.
bool takes_logits(const torch::Tensor& logits);
torch::Tensor cross_entropy(torch::Tensor& logits, const torch::Tensor& target);

// softmax(q k^T / sqrt(head_dim), masked) v; shapes and `lengths` as self_attention's. Masks of dropped probabilities
// are drawn inside the kernel from `seed`, not by random.h.
struct AttentionInputs {
  torch::Tensor q, k, v;
  bool causal = false;
  torch::Tensor lengths;
  double dropout = 0.0;
  std::uint64_t seed = 0;
};
struct AttentionResult {
  torch::Tensor out;                              // [batch, rows, heads, head_dim], contiguous
  torch::Tensor lse, philox_seed, philox_offset;  // what backward needs besides the inputs
};
AttentionResult attention(const AttentionInputs& in);
struct AttentionGradients {
  torch::Tensor q, k, v;  // [batch, rows, heads, head_dim], contiguous
};
AttentionGradients attention_backward(const AttentionInputs& in, const AttentionResult& result,
                                      const torch::Tensor& dout);

}  // namespace lockstep::nn::cuda
