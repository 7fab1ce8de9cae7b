// One optimizer step of a dense, Llama-shaped transformer on one GPU, with its own forward and backward: no autograd,
// static memory, fused kernels, the micro-step and the update as CUDA graphs.
//
//   FusedStep step(spec::load_model("llama2-7b"), options);
//   step.initialize(seed);                     // or load() every parameter
//   float loss = step.step(tokens, targets, 3e-4).loss;
//
// One thread at a time. The device is the one current at construction.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/engine/fused/gemm.h"
#include "lockstep/engine/fused/options.h"
#include "lockstep/engine/fused/parameters.h"
#include "lockstep/engine/fused/step_timeline.h"

namespace lockstep::engine::cuda {

class FusedStep {
 public:
  // Takes all memory of the step. Throws UserError where the model is not supported or does not fit.
  FusedStep(const spec::Model& model, const FusedOptions& options);
  ~FusedStep();
  FusedStep(const FusedStep&) = delete;
  FusedStep& operator=(const FusedStep&) = delete;

  void initialize(std::uint32_t seed);           // normal values of the model's init_std; optimizer states 0
  void initialize_as_torch(std::uint32_t seed);  // the distributions of torch.nn's modules; optimizer states 0
  const std::vector<NamedParameter>& parameters() const;
  // fp32 master values, by the engine's names; q, k, v and gate, up apart. These wait for the device.
  void load(const std::string& name, const std::vector<float>& values);
  std::vector<float> save(const std::string& name) const;
  std::vector<float> save_gradient(const std::string& name) const;  // of the last step, not clipped

  // Live device memory of a parameter, its size in parameters(): the bf16 weight, or AdamW's m and v, float or bf16 as
  // options say. No step is in flight while it is used.
  void* memory(const NamedParameter& parameter, FusedParameters::Part part) const;
  void load(const NamedParameter& parameter, const float* values);
  void load(const NamedParameter& parameter, const Bf16* values);
  void save(const NamedParameter& parameter, float* values) const;
  void save_on_device(const NamedParameter& parameter, float* values) const;
  // All of them: `values` has room for flat_count(), each parameter stands at its place.
  void save_all_on_device(float* values) const;
  std::int64_t flat_count() const;
  // Updates made: what AdamW corrects its means with.
  std::int64_t updates() const;
  void set_updates(std::int64_t updates);

  struct Result {
    float loss = 0;            // mean over the step's targets
    float gradient_norm = 0;   // 0 unless options ask for it
    bool skipped = false;      // the norm was asked for and is not finite: nothing was updated
    float gpu_ms = 0;          // from the first kernel to the end of the update
    float input_stall_ms = 0;  // how long the device waited for its input
  };
  // tokens, targets: host, [accumulation * micro_batch, sequence_length]; copied before submit returns. Targets outside
  // [0, vocab) are ignored; tokens must be inside. At most two steps are in flight. UserError otherwise.
  void submit(const std::int32_t* tokens, const std::int32_t* targets, double learning_rate);
  Result wait();  // for the oldest step submitted
  Result step(const std::int32_t* tokens, const std::int32_t* targets, double learning_rate);

  struct Evaluation {
    double loss = 0;  // sum over the counted targets
    double hits = 0;  // counted targets that have the largest logit
  };
  // Forward only, in bf16, over one micro-batch [micro_batch, sequence_length]; gradients and scales stay as they are.
  // No step is in flight. Waits.
  Evaluation evaluate(const std::int32_t* tokens, const std::int32_t* targets);

  // A step without graphs, with events around every operation.
  std::vector<StepTimeline::Operation> profile(const std::int32_t* tokens, const std::int32_t* targets,
                                               double learning_rate);

  struct Memory {
    std::size_t arena_bytes = 0;      // ours
    std::size_t attention_bytes = 0;  // peak of libtorch's allocator: attention's outputs and workspaces
    std::size_t total() const { return arena_bytes + attention_bytes; }
  };
  Memory memory() const;
  std::vector<Gemm::Choice> gemm_choices() const;
  // After the first step: chooses GEMM algorithms again, timed inside micro-steps whose results are dropped (the next
  // step overwrites the gradients). Takes `rounds` * gemm_candidates micro-steps. The choice can be kept (gemm_table).
  void tune_gemms(int rounds);
  // Algorithms chosen so far, as text; used before the first step they are not chosen again. False: the table is of
  // another device or library, and is not used.
  std::string gemm_table() const;
  bool use_gemm_table(const std::string& text);
  void save_gemm_table(const std::string& path) const;
  const FusedShape& shape() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::engine::cuda
