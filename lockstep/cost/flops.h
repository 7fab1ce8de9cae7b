// What one micro-step of a model computes: the list of its operators with FLOPs, traffic and what backward needs kept.
// Pure functions. One multiply-add is two FLOPs; backward of a matrix product is twice its forward.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/cost/profile/profile.h"
#include "lockstep/spec/model.h"

namespace lockstep::cost {

enum class OperatorKind { kMatmul, kConvolution, kAttention, kPointwise };

// One operator, `count` times per micro-step with the same shape.
struct Operator {
  const char* name = "";  // "qkv", "mlp_down", ...; a literal
  OperatorKind kind = OperatorKind::kPointwise;
  std::int64_t count = 1;
  // kMatmul, kConvolution: Y[m,n] = X[m,k] W[n,k]^T
  std::int64_t m = 0, n = 0, k = 0;
  bool needs_input_gradient = true;  // false for the first layer of a network
  // kConvolution: the images behind m and k, [samples, channels, size, size]
  std::int64_t samples = 0, channels = 0, size = 0, kernel_size = 0, stride = 1, padding = 0;
  // kAttention
  std::int64_t heads = 0, sequence = 0, head_dim = 0;  // heads = batch x query heads
  bool causal = false;
  std::int64_t window = 0;  // keys that a query sees; 0: all
  // kPointwise
  PointwiseKernel kernel = PointwiseKernel::kAdd;
  std::int64_t elements = 0;  // of the output
  // Elements kept from forward to backward because of this operator, beyond what another operator already keeps.
  std::int64_t saved_elements = 0;
  // Computed a few rows at a time: the whole output never exists.
  bool chunked = false;

  double forward_flops() const;   // of one; 0 for kPointwise (it is priced by traffic)
  double backward_flops() const;  // of one
};

// `samples` sequences of `sequence` tokens, or images (sequence ignored). GPT, Llama, the CNNs and ResNet so far;
// others are a UserError (exit code 3) that says which architectures are priced.
std::vector<Operator> list_operators(const spec::Model& model, std::int64_t samples, std::int64_t sequence);

// Sum over list_operators(): FLOPs of forward, and of forward + backward.
double forward_flops(const spec::Model& model, std::int64_t samples, std::int64_t sequence);
double training_flops(const spec::Model& model, std::int64_t samples, std::int64_t sequence);

// FLOPs per token as MFU counts them: 6 x (parameters without the input embedding) + attention: 6 x layers x (heads x
// head_dim) x sequence where it is causal, twice that where tokens see both sides (BERT), in a layer with a window what
// the window leaves, none without attention (Mamba, whose scan has about nine operations per channel and state, and
// twice that backward). Of a mixture of experts only those that
// a token visits count.
double mfu_flops_per_token(const spec::Model& model, std::int64_t sequence);

// Model FLOPs utilisation: tokens/s x mfu_flops_per_token / (devices x peak of one device).
double mfu(const spec::Model& model, std::int64_t sequence, double tokens_per_second, std::int64_t devices,
           double peak_flops_per_device);

}  // namespace lockstep::cost
