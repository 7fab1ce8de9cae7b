// FlatParameters: all trainable parameters of a module as views of one flat tensor, their gradients as views of
// another.
//
// One all-reduce, one memset, one optimizer pass then serve the whole model. Parameters keep their registration order;
// each starts on a 64-byte boundary and the gaps hold zeros in every flat tensor. A parameter registered under two
// names (tied weights) is held once, under its first name.
//
// With a master dtype other than the model's (bf16 or fp16 weights), the flat gradient has `gradient_dtype`: a hook
// adds each parameter's gradient into it as soon as autograd has produced it and drops the low-precision one.
//
// Threads: one FlatParameters belongs to one rank; backward() and all calls come from that rank's thread (libtorch runs
// CPU backward in the caller's thread). Several of them, over different modules, live in one process.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/kernels/fused_optimizer.h"

namespace lockstep::parallel {

// Named state that checkpoints keep. Tensors may be views of live state: write or clone them before the next step.
using TensorMap = std::map<std::string, torch::Tensor>;

struct ParameterRange {
  std::string name;
  std::vector<std::int64_t> sizes;
  std::int64_t offset = 0;  // first element in the flat tensors
  std::int64_t count = 0;   // elements, without padding
};

enum class DecayPolicy {
  kAll,           // torch.optim's default
  kMatricesOnly,  // no decay for tensors with fewer than two dims (biases, norms)
  kNone
};

struct FlatOptions {
  // Unset: the model's own dtype, no separate master. Set both or neither; they must be at least as wide as the
  // model's.
  c10::optional<torch::ScalarType> gradient_dtype;
  c10::optional<torch::ScalarType> master_dtype;
  std::int64_t total_multiple = 1;  // the flat length is rounded up to a multiple of this (sharding wants it)
};

class FlatParameters {
 public:
  // Re-homes the parameters: `module`'s tensors become views of values(). The module must outlive this object, have at
  // least one trainable parameter, and all of them one dtype and device (bad_input otherwise). Gradients held by the
  // module before are dropped. Destruction removes the hooks; the parameters stay valid.
  explicit FlatParameters(std::shared_ptr<torch::nn::Module> module, const FlatOptions& options = {});
  ~FlatParameters();
  FlatParameters(const FlatParameters&) = delete;
  FlatParameters& operator=(const FlatParameters&) = delete;

  const std::vector<ParameterRange>& ranges() const { return ranges_; }
  std::int64_t length() const { return values_.numel(); }  // with padding
  std::int64_t parameter_count() const;                    // without padding
  const torch::nn::Module& module() const { return *module_; }
  torch::nn::Module& module() { return *module_; }

  const torch::Tensor& values() const { return values_; }        // [length] what the model computes with
  const torch::Tensor& gradients() const { return gradients_; }  // [length] sum over micro-steps since zero_gradients()
  const torch::Tensor& master() const { return master_; }  // [length] what the optimizer updates; values() if none
  bool has_master() const { return has_master_; }

  // The slice of a flat tensor that belongs to range `index`, with the parameter's shape.
  torch::Tensor view(const torch::Tensor& flat, std::size_t index) const;
  // Every parameter's slice of `flat` under prefix + name.
  TensorMap views(const torch::Tensor& flat, const std::string& prefix = {}) const;
  // Copies tensors named prefix + name into `flat`, converting dtype; bad_input names a missing or misshapen one.
  void load(torch::Tensor& flat, const TensorMap& tensors, const std::string& prefix = {}) const;

  // For one rank on a device: a kernel per parameter is mostly launches. From now on gradients of a dtype of their own
  // stay with the parameters until collect_gradients() moves all of them at once; call it after every backward pass.
  // Without a dtype of their own both do nothing.
  void collect_at_once();
  void collect_gradients();

  void zero_gradients();
  // After loading values(): master <- values. After loading master(): values <- master.
  void copy_values_to_master();
  void copy_master_to_values();

  // Merged element ranges that get weight decay, for kernels::adamw and kernels::sgd.
  std::vector<kernels::ElementRange> decay_ranges(DecayPolicy policy) const;

  // Calls `hook(index)` each time autograd has finished adding to parameter `index`'s gradient in a backward pass: once
  // per pass, with all uses of a tied parameter already summed. One hook at a time; an empty function removes it.
  void set_gradient_hook(std::function<void(std::size_t)> hook);

 private:
  struct Hooks;
  void lay_out(const FlatOptions& options);
  void rehome(const FlatOptions& options);

  std::shared_ptr<torch::nn::Module> module_;
  std::vector<torch::Tensor> parameters_;
  std::vector<ParameterRange> ranges_;
  torch::Tensor values_;
  torch::Tensor gradients_;
  torch::Tensor master_;
  bool has_master_ = false;
  bool zeroed_ = true;  // gradients_ holds zeros
  std::unique_ptr<Hooks> hooks_;
};

}  // namespace lockstep::parallel
