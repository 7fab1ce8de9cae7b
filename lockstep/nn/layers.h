// The layers that models are made of: parameters with torch's names, which part of each this rank holds, and how it is
// initialised. All are built empty; initialise() then draws every parameter by its full name.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "lockstep/nn/functional.h"
#include "lockstep/nn/placement.h"

namespace lockstep::nn {

// A parameter as its layer declared it.
struct DeclaredParameter {
  std::string name;  // inside the layer: "weight"
  torch::Tensor tensor;
  Placement placement;
  InitialValue initial;
};

// Whatever owns parameters directly: layers, and models that do so themselves.
class ParameterOwner {
 public:
  virtual ~ParameterOwner() = default;
  virtual const std::vector<DeclaredParameter>& declared() const = 0;
};

// A module that owns parameters directly.
class Layer : public torch::nn::Module, public ParameterOwner {
 public:
  const std::vector<DeclaredParameter>& declared() const override { return declared_; }
  // Back to the start: buffers that are part of the training state.
  virtual void reset_buffers() {}

 protected:
  // Registers this rank's part of a parameter, uninitialised.
  torch::Tensor declare(const std::string& name, Placement placement, InitialValue initial,
                        const torch::TensorOptions& options);
  // The same for a tensor that is there already.
  void adopt(const std::string& name, const torch::Tensor& tensor, Placement placement, InitialValue initial);

 private:
  std::vector<DeclaredParameter> declared_;
};

// Every declared parameter of the model under its full name ("transformer.h.0.attn.c_attn.weight"), in order of
// registration; a layer registered twice comes once, under its first name.
std::vector<DeclaredParameter> declared_parameters(const torch::nn::Module& model);

// Gives every parameter its initial value and resets buffers. Depends on names and seed alone.
void initialise(torch::nn::Module& model, std::uint64_t seed);

// How weights are drawn. Biases: kNormal gives zeros, kKaimingUniform draws them like torch.nn.Linear does.
struct Init {
  enum class Kind { kNormal, kKaimingUniform, kKaimingNormalFanOut };
  Kind kind = Kind::kNormal;
  double std = 0.02;  // kNormal
};

// A parameter that several tensor-parallel ranks hold (Placement::sharers, partial_gradient).
struct Sharing {
  std::int64_t sharers = 1;
  bool partial = false;
};

// Which part of a linear layer this rank holds.
struct LinearCut {
  enum class Kind { kWhole, kOutputs, kInputs };
  Kind kind = Kind::kWhole;
  std::vector<Segment> segments = {};  // of the outputs or inputs
  Sharing weight = {};                 // kOutputs: of the bias too
  Sharing bias = {};                   // kInputs: the bias is whole, and added after the ranks' products are summed
  bool expert = false;
};

class Linear;

// What LoRA adds to a linear layer (nn/lora.h): scale x B (A x). Under tensor parallelism a layer cut by inputs adds
// its part of the sum, like its product.
struct LowRank {
  std::shared_ptr<Linear> a;  // [rank, in]
  std::shared_ptr<Linear> b;  // [out, rank]
  double scale = 1.0;
};

// torch.nn.Linear (weight [out, in]) or, with WeightLayout::kInOut, GPT-2's Conv1D (weight [in, out]). `in` and `out`
// are those of the whole layer.
class Linear : public Layer {
 public:
  Linear(std::int64_t in, std::int64_t out, bool with_bias, WeightLayout layout, Init init,
         const torch::TensorOptions& options, const LinearCut& cut = {});
  torch::Tensor forward(const torch::Tensor& x) const { return adapted(linear(x, weight, bias, layout_), x); }
  // Without the bias.
  torch::Tensor product(const torch::Tensor& x) const {
    return adapted(linear(x, weight, torch::Tensor(), layout_), x);
  }
  torch::Tensor add_to(const torch::Tensor& residual, const torch::Tensor& x) const {
    return adapted(linear_residual(residual, x, weight, bias, layout_), x);
  }
  WeightLayout layout() const { return layout_; }
  // Weight and bias are all there is; only then may fused paths read them past forward().
  bool plain() const { return lora == nullptr; }

  torch::Tensor weight;
  torch::Tensor bias;  // undefined without
  std::shared_ptr<const LowRank> lora;

 private:
  torch::Tensor adapted(const torch::Tensor& y, const torch::Tensor& x) const {
    return plain() ? y : lora->b->add_to(y, lora->a->forward(x) * lora->scale);
  }

  WeightLayout layout_;
};

// activation(layer(x)).
torch::Tensor activated(const Linear& layer, const torch::Tensor& x, spec::Activation activation);

class Embedding : public Layer {
 public:
  // `rows` cuts the table by index; empty: whole.
  Embedding(std::int64_t count, std::int64_t dim, double std, const torch::TensorOptions& options,
            const std::vector<Segment>& rows = {}, Sharing sharing = {});
  torch::Tensor forward(const torch::Tensor& indices) const { return at::embedding(weight, indices); }
  // Rows that this rank holds; zeros for indices that another one has. Ranks' results add up to forward() of the whole.
  torch::Tensor forward_own(const torch::Tensor& indices) const;

  torch::Tensor weight;  // [count, dim]

 private:
  std::int64_t first_row_ = 0;
};

class LayerNorm : public Layer {
 public:
  LayerNorm(std::int64_t dim, bool with_bias, double epsilon, const torch::TensorOptions& options,
            Sharing sharing = {});
  torch::Tensor forward(const torch::Tensor& x) const { return layer_norm(x, weight, bias, epsilon_); }

  torch::Tensor weight;
  torch::Tensor bias;  // undefined without

 private:
  double epsilon_;
};

class RmsNorm : public Layer {
 public:
  RmsNorm(std::int64_t dim, double epsilon, const torch::TensorOptions& options, Sharing sharing = {});
  torch::Tensor forward(const torch::Tensor& x) const { return rms_norm(x, weight, epsilon_); }

  torch::Tensor weight;

 private:
  double epsilon_;
};

// The norm of a decoder (spec::Decoder): RMSNorm, also with 1 + weight, LayerNorm, or LayerNorm without weights.
class Norm : public Layer {
 public:
  struct Settings {
    spec::NormKind kind = spec::NormKind::kRms;
    bool plus_one = false;
    bool bias = false;  // LayerNorm's
    double epsilon = 1e-5;
  };
  // `rows` cuts the weight; empty: whole.
  Norm(std::int64_t dim, const Settings& settings, const torch::TensorOptions& options, Sharing sharing = {},
       const std::vector<Segment>& rows = {});
  torch::Tensor forward(const torch::Tensor& x) const;
  // What RMSNorm multiplies by.
  torch::Tensor scale() const { return settings_.plus_one ? weight + 1.0 : weight; }
  double epsilon() const { return settings_.epsilon; }

  torch::Tensor weight;  // undefined where plain
  torch::Tensor bias;    // undefined without

 private:
  Settings settings_;
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
  // For 1x1: `x` holds only the pixels that the stride visits.
  torch::Tensor forward_visited(const torch::Tensor& x) const { return convolve(x, 1); }

  torch::Tensor weight;  // [out, in, kernel, kernel]
  torch::Tensor bias;    // undefined without

 private:
  torch::Tensor convolve(const torch::Tensor& x, std::int64_t stride) const;

  ConvShape shape_;
};

// torch.nn.BatchNorm2d (epsilon 1e-5, momentum 0.1). In training it uses the statistics of its own micro-batch, as
// PyTorch's DistributedDataParallel does, and updates the running ones, which are fp32 or better.
class BatchNorm2d : public Layer {
 public:
  BatchNorm2d(std::int64_t channels, const torch::TensorOptions& options);
  torch::Tensor forward(const torch::Tensor& x, bool training);
  void reset_buffers() override;

  torch::Tensor weight, bias;
  torch::Tensor running_mean, running_var;
  torch::Tensor num_batches_tracked;  // int64, kept for torch's state dict
  torch::Tensor tickets;              // scratch of the CUDA kernels (nn/batch_norm.h), made when they first run
};

// A module that only groups others under a name.
class Group : public torch::nn::Module {};

}  // namespace lockstep::nn
