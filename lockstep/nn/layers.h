// The layers that models are made of: parameters with torch's names, and how each is initialised. All are built empty;
// initialise() then draws every parameter by its full name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "lockstep/nn/functional.h"

namespace lockstep::nn {

// A module that owns parameters directly. `name` is its full name inside the model ("transformer.h.0.attn.c_attn").
class Layer : public torch::nn::Module {
 public:
  virtual void reset(const std::string& name, std::uint64_t seed) = 0;
};

// Calls reset() on every layer of the model. Depends on names and seed alone.
void initialise(torch::nn::Module& model, std::uint64_t seed);

// How weights are drawn. Biases: kNormal gives zeros, kKaimingUniform draws them like torch.nn.Linear does.
struct Init {
  enum class Kind { kNormal, kKaimingUniform, kKaimingNormalFanOut };
  Kind kind = Kind::kNormal;
  double std = 0.02;  // kNormal
};

// torch.nn.Linear (weight [out, in]) or, with WeightLayout::kInOut, GPT-2's Conv1D (weight [in, out]).
class Linear : public Layer {
 public:
  Linear(std::int64_t in, std::int64_t out, bool with_bias, WeightLayout layout, Init init,
         const torch::TensorOptions& options);
  torch::Tensor forward(const torch::Tensor& x) const { return linear(x, weight, bias, layout_); }
  torch::Tensor add_to(const torch::Tensor& residual, const torch::Tensor& x) const {
    return linear_residual(residual, x, weight, bias, layout_);
  }
  void reset(const std::string& name, std::uint64_t seed) override;

  torch::Tensor weight;
  torch::Tensor bias;  // undefined without

 private:
  std::int64_t in_;
  WeightLayout layout_;
  Init init_;
};

class Embedding : public Layer {
 public:
  Embedding(std::int64_t count, std::int64_t dim, double std, const torch::TensorOptions& options);
  torch::Tensor forward(const torch::Tensor& indices) const { return at::embedding(weight, indices); }
  void reset(const std::string& name, std::uint64_t seed) override;

  torch::Tensor weight;  // [count, dim]

 private:
  double std_;
};

class LayerNorm : public Layer {
 public:
  LayerNorm(std::int64_t dim, bool with_bias, double epsilon, const torch::TensorOptions& options);
  torch::Tensor forward(const torch::Tensor& x) const { return layer_norm(x, weight, bias, epsilon_); }
  void reset(const std::string& name, std::uint64_t seed) override;

  torch::Tensor weight;
  torch::Tensor bias;  // undefined without

 private:
  double epsilon_;
};

class RmsNorm : public Layer {
 public:
  RmsNorm(std::int64_t dim, double epsilon, const torch::TensorOptions& options);
  torch::Tensor forward(const torch::Tensor& x) const { return rms_norm(x, weight, epsilon_); }
  void reset(const std::string& name, std::uint64_t seed) override;

  torch::Tensor weight;

 private:
  double epsilon_;
};

struct ConvShape {
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  bool bias = true;
};

class Conv2d : public Layer {
 public:
  Conv2d(const ConvShape& shape, Init init, const torch::TensorOptions& options);
  torch::Tensor forward(const torch::Tensor& x) const;
  void reset(const std::string& name, std::uint64_t seed) override;

  torch::Tensor weight;  // [out, in, kernel, kernel]
  torch::Tensor bias;    // undefined without

 private:
  ConvShape shape_;
  Init init_;
};

// torch.nn.BatchNorm2d (epsilon 1e-5, momentum 0.1). In training it uses the statistics of its own micro-batch, as
// PyTorch's DistributedDataParallel does, and updates the running ones, which are fp32 or better.
class BatchNorm2d : public Layer {
 public:
  BatchNorm2d(std::int64_t channels, const torch::TensorOptions& options);
  torch::Tensor forward(const torch::Tensor& x, bool training);
  void reset(const std::string& name, std::uint64_t seed) override;

  torch::Tensor weight, bias;
  torch::Tensor running_mean, running_var;
  torch::Tensor num_batches_tracked;  // int64, kept for torch's state dict
};

// A module that only groups others under a name.
class Group : public torch::nn::Module {};

}  // namespace lockstep::nn
