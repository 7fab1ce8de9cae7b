// The models that can be trained: one interface, one function that builds any of them from a spec::Model.
//
// Parameter and buffer names are those of Hugging Face transformers (GPT-2, Llama) and torchvision (ResNet), so a
// safetensors file maps one to one. Initial weights depend on (seed, parameter name) alone.
//
//   auto model = nn::build_model(spec::load_model("gpt2-124m"), {.dtype = torch::kFloat32, .seed = 1});
//   nn::LossResult result = model->loss(batch.input, batch.target, {.seed = 1, .step = k, .training = true});
//   (result.loss_sum / global_target_count).backward();
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include "lockstep/nn/partition.h"
#include "lockstep/spec/model.h"

namespace lockstep::nn {

// What a forward pass needs to know besides its input. `first_index` is the place of the input's first sample inside
// the global batch of `step`; together with the seed it fixes every dropout mask.
struct ForwardContext {
  std::uint64_t seed = 0;
  std::int64_t step = 0, first_index = 0;
  std::int64_t padding_id = -1;  // classification of sentences: trailing tokens with this id are not read
  bool training = true;          // dropout on, batch norm uses (and updates) batch statistics
  // Where cp splits the sequence: the global positions of this rank's rows (int64 [rows], nn::context_positions);
  // undefined: all rows, in order.
  torch::Tensor positions;
  // Bidirectional models: tokens of each sample before its padding (int64 [samples]); undefined: all of them.
  torch::Tensor lengths;
  // Models of several inputs: those after the first, samples first.
  std::vector<torch::Tensor> more_inputs;
  // Where attention stays within documents: int64 [samples, rows of the whole sequence] in host memory, for each row
  // the one where its document begins; positions begin anew there. Undefined: a sequence is one document.
  torch::Tensor documents;
};

struct LossResult {
  torch::Tensor loss_sum;    // 0-dim, fp32 (fp64 models: fp64), summed over the counted targets
  std::int64_t count = 0;    // targets that are not kIgnoredTarget
  std::int64_t correct = 0;  // arg-max hits; filled only when !context.training
  // Undefined, or what is added to the mean loss of the micro-step (LayerOutput::auxiliary).
  torch::Tensor auxiliary = {};
};

inline constexpr std::int64_t kIgnoredTarget = -100;

// One model on one device. Not thread-safe; independent models are. Parameters all have BuildOptions::dtype; buffers
// (batch norm's running statistics) are fp32, or fp64 in an fp64 model, and belong to the training state.
class TrainableModel : public torch::nn::Module {
 public:
  // Language models: int64 [samples, seq] -> logits [samples, seq, vocab]. Images: float [samples, C, H, W] (cast to
  // the model's dtype when it differs) -> logits [samples, classes].
  virtual torch::Tensor forward(const torch::Tensor& input, const ForwardContext& context) = 0;

  // Cross-entropy of forward(input) against target (int64 [samples, seq] or [samples]). Logits are not kept for
  // backward. Only first derivatives exist. Zero samples, or only ignored targets, give a loss_sum of 0 (with zero
  // samples it has no graph). A target outside [0, classes) other than kIgnoredTarget is bad_input.
  virtual LossResult loss(const torch::Tensor& input, const torch::Tensor& target, const ForwardContext& context) = 0;

  // Every parameter has its initial value now: what they were taken from need not be kept.
  virtual void drop_initial_values() {}

  const spec::Model& spec() const { return spec_; }
  torch::Dtype dtype() const { return dtype_; }

 protected:
  TrainableModel(spec::Model spec, torch::Dtype dtype) : spec_(std::move(spec)), dtype_(dtype) {}

 private:
  spec::Model spec_;
  torch::Dtype dtype_;
};

// The consecutive layers that a pipeline chunk holds.
struct ModelPart {
  std::int64_t first_layer = 0;
  std::int64_t end_layer = -1;  // -1: to the last
  bool embedding = true;
  bool head = true;
};

struct BuildOptions {
  torch::Dtype dtype = torch::kFloat32;  // fp64, fp32, bf16, fp16
  torch::Device device = torch::kCPU;    // meta: shapes only, no weights
  std::uint64_t seed = 0;
  Partition partition;     // the ranks that compute the model together; default: this one alone
  ModelPart part;          // default: all of it
  bool initialise = true;  // false: weights are left as they are (the caller fills them)
  bool autocast = false;   // modules from Python: products in bf16, weights in dtype
};

// Throws UserError for an architecture that cannot be trained yet, and for sizes that do not fit together.
std::shared_ptr<TrainableModel> build_model(const spec::Model& spec, const BuildOptions& options = {});

}  // namespace lockstep::nn
