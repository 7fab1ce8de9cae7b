// The two halves of a post-norm encoder layer (BERT) as one autograd function each, over the CUDA kernels of
// cuda/operators.h: one product for q, k and v, biases, dropout, residual sum and norm in one pass, and gradients that
// the next product adds to. Only for layers that one rank holds whole.
#pragma once

#include <cstdint>

#include <torch/types.h>

#include "lockstep/nn/random.h"

namespace lockstep::nn {

// Whether the functions below take this residual stream: [samples, rows, hidden] in bf16 on CUDA, in this build.
bool takes_encoder_block(const torch::Tensor& x);

struct LinearTensors {
  torch::Tensor weight;  // [out, in]
  torch::Tensor bias;    // [out]
};
struct NormTensors {
  torch::Tensor weight, bias;
  double epsilon = 1e-12;
};

struct EncoderAttentionOptions {
  std::int64_t heads = 1;
  torch::Tensor lengths;  // as AttentionOptions'
  double dropout = 0.0;   // of probabilities and of the output
  DropoutSite probabilities, output;
};

// norm(x + dropout(out(attention(query(x), key(x), value(x)))))
torch::Tensor encoder_attention(const torch::Tensor& x, const LinearTensors& query, const LinearTensors& key,
                                const LinearTensors& value, const LinearTensors& out, const NormTensors& norm,
                                const EncoderAttentionOptions& options);

// norm(x + dropout(down(gelu(up(x))))), gelu with the error function or its tanh form.
torch::Tensor encoder_mlp(const torch::Tensor& x, const LinearTensors& up, const LinearTensors& down,
                          const NormTensors& norm, bool tanh_form, double dropout, const DropoutSite& site);

}  // namespace lockstep::nn
