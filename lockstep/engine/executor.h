// Executor: one rank's model and the optimizer steps on it. The trainer knows this interface alone; behind it is
// ShardedExecutor (any layout, through libtorch) or FusedExecutor (a whole model on one GPU, by a program of its own).
// Checkpoints are the same, so a run may go on in the other one.
//
//   executor->stage(batches);                       // of the next step
//   StepResult result = executor->step({.step = 0, .learning_rate = 3e-4});
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/pieces.h"
#include "lockstep/data/loader.h"
#include "lockstep/engine/metrics.h"
#include "lockstep/engine/step_result.h"

namespace lockstep::engine {

// Names of the state beside the weights, in every checkpoint: a parameter's own name follows the prefixes.
namespace state_name {
inline constexpr const char* kSteps = "optimizer.step";  // int64, 0-dim: updates made
inline constexpr const char* kFirstMoment = "optimizer.exp_avg.";
inline constexpr const char* kSecondMoment = "optimizer.exp_avg_sq.";
inline constexpr const char* kMomentum = "optimizer.momentum.";
inline constexpr const char* kGenerator = "libtorch.generator";  // of each rank
inline constexpr const char* kMaster = "master.";                // the fp32 weights beside narrower ones
}  // namespace state_name

struct StepInput {
  std::int64_t step = 0;  // optimizer steps done before
  double learning_rate = 0.0;
  StepWishes wishes = {};
  // Asked before the update with the loss and the norm of the gradient, which are the same on every rank; must answer
  // alike on all. May be empty: the update does not wait for the loss.
  std::function<bool(double loss, double gradient_norm)> may_update = {};
  // Called at most once, while a device works on the step: the time to stage() the next one. May be empty.
  std::function<void()> meanwhile = {};
  // Called once before the state changes; when the update begins on any rank, it has returned on all of them. May be
  // empty, and may throw Fault.
  std::function<void()> before_update = {};
};

// One evaluation batch. `output` and `target` are defined where the output was asked for, on the rank that counts.
struct Evaluated {
  EvaluationSums sums;
  torch::Tensor output, target;
};

struct ExecutorFigures {
  std::int64_t communicated_bytes = 0;
  std::int64_t skipped_steps = 0;
  std::int64_t offloaded_bytes = 0;
  double peak_memory_bytes = 0.0;
};

// A checkpoint that state is put back from.
struct SavedState {
  const checkpoint::CheckpointFacts& facts;
  const checkpoint::TensorSource& tensors;
  const checkpoint::TensorMap& rank_tensors;  // this rank's own; empty where it had none
};

// Belongs to one rank's thread. What is collective is so over all ranks of the run and throws Fault when a peer is
// lost.
class Executor {
 public:
  virtual ~Executor() = default;

  // One line for people, "fused CUDA step, bf16, recompute none"; "" where there is nothing to choose.
  virtual std::string describe() const = 0;
  virtual std::int64_t data_rank() const = 0;
  // Parameters that job.weights lacked, the same on every rank; empty without job.weights or before begin_weights().
  virtual const std::vector<std::string>& initial_parameters() const = 0;

  // Collective: weights get the values that a run begins with: those of job.weights, or the model's initial ones. Not
  // before this or restore() have they any.
  virtual void begin_weights() = 0;

  // The micro-batches of this data rank in the next step, as the loader makes them: whole sequences in host memory.
  virtual void stage(std::vector<data::Batch> batches) = 0;
  // Collective: the step of what was staged. Fills everything of the result but samples, tokens and seconds;
  // data_seconds are those that `meanwhile` held the device up.
  virtual StepResult step(const StepInput& input) = 0;
  // Collective: what this rank counts of one evaluation batch of its data rank. `with_output`: what the model gives
  // too, which takes a second pass over it.
  virtual Evaluated evaluate(const data::Batch& batch, std::int64_t padding_id, bool with_output) = 0;
  // Collective: the model's buffers (batch norm's running statistics) become rank 0's.
  virtual void share_buffers() = 0;

  // Collective: adds this rank's pieces of weights and optimizer state, and its own state. Over all ranks every element
  // occurs once. Tensors may be views of live state: copy them before the next step.
  virtual void save(checkpoint::CheckpointPart& part) = 0;
  // Not collective, also after a Fault: adds everything that this rank holds of the state after completed_steps(), what
  // peers hold too included. Tensors may be views of live state.
  virtual void hold(checkpoint::CheckpointPart& part) const = 0;
  // Not collective: adds the pieces that other ranks may hold too and must then hold with the same bits. Views of live
  // state.
  virtual void add_replicas(checkpoint::CheckpointPart& part) const = 0;
  // Optimizer steps whose update is in the state: StepInput::step, or one more once a step has updated it.
  virtual std::int64_t completed_steps() const = 0;
  // Collective: the reverse, whatever the layout was; each rank reads what it holds. Returns a sentence about what
  // could not be kept ("" otherwise). Throws bad_input when the checkpoint is of another model or optimizer.
  virtual std::string restore(const SavedState& saved, bool same_ranks) = 0;
  // Not collective: reads what restore() does; restore() must follow.
  virtual void read_state(const SavedState& saved) = 0;
  // Collective: rank 0 writes a folder that transformers loads.
  virtual void export_weights(const std::string& folder, const std::string& tokenizer_folder) = 0;
  virtual ExecutorFigures figures() const = 0;
};

}  // namespace lockstep::engine
