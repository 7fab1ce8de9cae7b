// Differentiable pieces that libtorch lacks or runs in more passes than needed. CPU tensors in fp32 and fp64 take the
// kernels of lockstep/kernels; bf16 and fp16 on the CPU compute element-wise parts in fp32. On CUDA bf16 takes the
// kernels of lockstep/kernels/cuda (dropout: fp32 too), anything else takes ATen. Only first derivatives exist.
// Matrices inside are flattened: x may be [..., features].
#pragma once

#include <cstdint>

#include <torch/types.h>

#include "lockstep/comm/communicator.h"
#include "lockstep/nn/placement.h"
#include "lockstep/nn/random.h"
#include "lockstep/spec/model.h"

namespace lockstep::nn {

// kOutIn: torch.nn.Linear, weight [out, in]. kInOut: GPT-2's Conv1D, weight [in, out].
enum class WeightLayout { kOutIn, kInOut };

// The matrix that x is multiplied by, [in, out], as a view of the weight.
inline torch::Tensor in_out(const torch::Tensor& weight, WeightLayout layout) {
  return layout == WeightLayout::kInOut ? weight : weight.t();
}

// x W + b; bias may be undefined.
torch::Tensor linear(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                     WeightLayout layout);

// residual + x W + b: the residual and bias are the start of the product's accumulation, so no extra pass is made.
torch::Tensor linear_residual(const torch::Tensor& residual, const torch::Tensor& x, const torch::Tensor& weight,
                              const torch::Tensor& bias, WeightLayout layout);

// gelu_tanh(x + bias), "gelu_new". Keeps x only. bias may be undefined.
torch::Tensor bias_gelu(const torch::Tensor& x, const torch::Tensor& bias);

// gelu(x + bias) with the error function (BERT). bias may be undefined.
torch::Tensor bias_gelu_erf(const torch::Tensor& x, const torch::Tensor& bias);

// silu(gate) * up. Keeps gate and up only.
torch::Tensor swiglu(const torch::Tensor& gate, const torch::Tensor& up);

// activation(gate) * up for any activation. Keeps gate and up only.
torch::Tensor gated(const torch::Tensor& gate, const torch::Tensor& up, spec::Activation activation);

// residual + gelu_tanh(x W1 + b1) W2 + b2. Keeps x and x W1; the inner activations are computed again in backward.
torch::Tensor gelu_mlp(const torch::Tensor& residual, const torch::Tensor& x, const torch::Tensor& w1,
                       const torch::Tensor& b1, const torch::Tensor& w2, const torch::Tensor& b2, WeightLayout layout);

// residual + (silu(x G^T) * (x U^T)) D^T, weights as in torch.nn.Linear.
torch::Tensor swiglu_mlp(const torch::Tensor& residual, const torch::Tensor& x, const torch::Tensor& gate,
                         const torch::Tensor& up, const torch::Tensor& down);

torch::Tensor layer_norm(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                         double epsilon);

// weight * x / sqrt(mean(x^2) + epsilon) over the last dim, statistics in fp32 or better (Llama).
torch::Tensor rms_norm(const torch::Tensor& x, const torch::Tensor& weight, double epsilon);

// Rotary position embedding in Hugging Face's rotate_half convention on x [batch, seq, heads, head_dim]; cos and sin
// [seq, rotated / 2] in fp32 or fp64 (see rope_tables). Heads that are longer than `rotated` keep the rest as it is.
torch::Tensor rope(const torch::Tensor& x, const torch::Tensor& cos, const torch::Tensor& sin);
struct RopeTables {
  torch::Tensor cos;  // [seq, head_dim / 2]
  torch::Tensor sin;
};
// `head_dim`: elements that are rotated. `max_sequence` (the model's) and `whole_sequence` (of this call; 0: seq)
// decide what LongRoPE does.
struct RopeContext {
  std::int64_t max_sequence = 0;
  std::int64_t whole_sequence = 0;
};
RopeTables rope_tables(std::int64_t seq, std::int64_t head_dim, double theta, const spec::RopeScaling& scaling,
                       const torch::TensorOptions& options, const RopeContext& context = {});

// Inverted dropout by Philox masks (random.h); the mask is drawn again in backward instead of being kept.
// probability 0 returns x itself.
torch::Tensor dropout(const torch::Tensor& x, double probability, const DropoutSite& site);

// The same for a rank with some rows of each sample: x [samples, rows, features], positions int64 [rows], the
// rows' numbers in the whole sequence (undefined: x has all rows).
torch::Tensor dropout(const torch::Tensor& x, double probability, const DropoutSite& site,
                      const torch::Tensor& positions);

struct CrossEntropy {
  torch::Tensor loss_sum;    // 0-dim, fp32 or fp64
  std::int64_t count = 0;    // targets that are not ignored; on a device only with `count_correct`, where it waits
  std::int64_t correct = 0;  // only with `count_correct`
};

// Sum over rows of -log softmax(x W^T + bias)[target]: the head's product and the loss in one, `chunk_rows` rows of
// logits at a time; their gradient overwrites them, so logits of the whole batch never exist. x [..., hidden],
// weight [classes, hidden], bias [classes] or undefined, target int64 with x's leading shape, -100 ignored.
CrossEntropy linear_cross_entropy(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                                  const torch::Tensor& target, bool count_correct, std::int64_t chunk_rows = 0);

// bad_input for a target that is neither ignored nor one of the classes; waits for a device. linear_cross_entropy asks
// it for targets on the CPU only.
void check_targets(const torch::Tensor& target, std::int64_t classes);

// The classes of a split vocabulary that this rank has.
struct ClassShare {
  comm::Communicator group;
  Segment own;
  std::int64_t total = 0;
};

// linear_cross_entropy over ranks that each hold the weights (and biases) of their own classes. Collective over the
// group, in forward only; x's gradient is this rank's part of the sum. Loss and counts are the same on every rank. With
// a `softcap` the logits are capped first, cap x tanh(logit / cap); a group that is not valid() has one rank.
CrossEntropy split_cross_entropy(const torch::Tensor& x, const torch::Tensor& weight, const torch::Tensor& bias,
                                 const torch::Tensor& target, const ClassShare& classes, bool count_correct,
                                 double softcap = 0.0);

// cap x tanh(x / cap).
torch::Tensor soft_capped(const torch::Tensor& x, double cap);

}  // namespace lockstep::nn
