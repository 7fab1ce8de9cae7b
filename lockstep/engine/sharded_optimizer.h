// AdamW and SGD over the shards of a ParallelModel, equal to torch.optim.AdamW and torch.optim.SGD: one fused pass per
// shard (kernels/fused_optimizer.h has the formulas), state only for what this rank owns. The learning rate comes with
// each step (engine/schedule.h), clipping and loss-scale removal come in as one factor on the gradient.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "lockstep/checkpoint/pieces.h"
#include "lockstep/parallel/parallel_model.h"
#include "lockstep/spec/job.h"

namespace lockstep::engine {

// Throws bad_input for settings that no optimizer has.
void check_optimizer(const spec::Optimizer& options);

// What to multiply a gradient of this norm by that still carries the loss scale: unscaling and clipping together.
// Clips as torch.nn.utils.clip_grad_norm_: min(1, clip_norm / (norm + 1e-6)); clip_norm 0 means no clipping.
double clip_factor(double norm, double clip_norm, double loss_scale = 1.0);

// The number of updates that a checkpoint's optimizer state has seen; bad_input when it does not say.
std::int64_t saved_updates(const checkpoint::TensorSource& source);

class ShardedOptimizer {
 public:
  // `model` must outlive the optimizer. With offload, state lives in the model's arena.
  ShardedOptimizer(const spec::Optimizer& options, parallel::ParallelModel& model);

  // Updates master() of every trainable shard from gradient_factor x gradient(). Not collective.
  void step(double learning_rate, double gradient_factor);
  std::int64_t steps() const { return steps_; }

  // Collective: the state with whole tensors on rank 0, by name (executor.h: state_name); empty elsewhere.
  parallel::TensorMap assemble() const;
  // Adds what this rank saves of it (Executor::save).
  void save(checkpoint::CheckpointPart& part, bool everything = false) const;
  // Restores this rank's part; bad_input names what is missing.
  void load(const checkpoint::TensorSource& source);
  // The state arrays by the prefix of their names ("optimizer.exp_avg."), for one shard.
  const std::vector<std::string>& slot_names() const { return names_; }
  torch::Tensor slot(const parallel::FlatShard& shard, std::size_t index) const;

 private:
  spec::Optimizer options_;
  parallel::ParallelModel& model_;
  std::vector<std::string> names_;
  std::map<const parallel::FlatShard*, std::vector<torch::Tensor>> slots_;
  std::int64_t steps_ = 0;
};

}  // namespace lockstep::engine
