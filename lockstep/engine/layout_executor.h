// LayoutExecutor: optimizer steps of one rank under any layout. It owns the rank's part of the model, the optimizer and
// the loss scale; batches come in as the loader makes them, one data rank's whole sequences.
//
// Everything is collective over the world it was built on. Throws Fault when a peer is lost.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/data/loader.h"
#include "lockstep/engine/loss_scaler.h"
#include "lockstep/engine/sharded_optimizer.h"
#include "lockstep/engine/step_result.h"
#include "lockstep/parallel/parallel_model.h"
#include "lockstep/plan/layout.h"
#include "lockstep/spec/job.h"

namespace lockstep::engine {

class LayoutExecutor {
 public:
  // Weights have their initial values, or those of job.weights. Throws UserError when layout, model and batch do not go
  // together. On a device the calling thread must have a DeviceThread.
  LayoutExecutor(const spec::Job& job, const plan::Layout& layout, comm::Communicator world,
                 torch::Device device = torch::kCPU);

  // `batches` are the micro-batches of this data rank in one step, in host memory. Fills loss, gradient_norm, skipped
  // and wishes.
  StepResult step(const std::vector<data::Batch>& batches, std::int64_t step, std::int64_t padding_id,
                  double learning_rate, StepWishes wishes);
  // Sums over the world of one evaluation batch of this data rank.
  struct Evaluation {
    double loss = 0.0, targets = 0.0, correct = 0.0;
  };
  Evaluation evaluate(const data::Batch& batch, std::int64_t padding_id);

  parallel::ParallelModel& model() { return *model_; }
  const parallel::ParallelModel& model() const { return *model_; }
  ShardedOptimizer& optimizer() { return *optimizer_; }
  const ShardedOptimizer& optimizer() const { return *optimizer_; }
  LossScaler& scaler() { return scaler_; }
  const LossScaler& scaler() const { return scaler_; }
  // Parameters that job.weights lacked, the same on every rank; empty without job.weights.
  const std::vector<std::string>& initial_parameters() const { return initial_parameters_; }

 private:
  parallel::MicroBatch micro_batch(const data::Batch& batch, std::int64_t step, std::int64_t padding_id, bool training);
  std::int64_t count_targets(const std::vector<data::Batch>& batches);

  spec::Job job_;
  torch::Device device_;
  std::unique_ptr<parallel::ParallelModel> model_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
  LossScaler scaler_;
  std::vector<std::string> initial_parameters_;
};

// Whether the data-parallel path of training_state.h runs this job: plain replicas of a model without auxiliary losses.
bool is_plain_data_parallel(const plan::Layout& layout, const spec::Job& job);

}  // namespace lockstep::engine
