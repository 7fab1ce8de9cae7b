// A step of a device that computes on the CPU what the general path does.
#pragma once

#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/checkpoint/pieces.h"
#include "lockstep/comm/local.h"
#include "lockstep/engine/device_step.h"
#include "lockstep/engine/sharded_optimizer.h"
#include "lockstep/parallel/parallel_model.h"

namespace lockstep::engine {

class FakeStep : public DeviceStep {
 public:
  explicit FakeStep(const spec::Job& job) : job_(job), world_(1) {
    parallel::ParallelModelOptions options;
    options.dtype = torch::kBFloat16;
    options.seed = 99;  // not the job's: its values are loaded
    options.micro_steps = job.batch.accumulation;
    model_ = std::make_unique<parallel::ParallelModel>(job.model, options, world_.communicator(0));
    optimizer_ = std::make_unique<ShardedOptimizer>(job.optimizer, *model_);
    for (const auto& parameter : shard().parameters()) {
      parameters_.push_back({parameter.name, parameter.tensor.sizes().vec()});
    }
  }

  std::string describe() const override { return "a fake"; }
  const std::vector<Parameter>& parameters() const override { return parameters_; }
  torch::Device device() const override { return torch::kCPU; }

  torch::Tensor read(Part part, std::size_t i) override {
    const torch::Tensor flat = part == Part::kWeight   ? shard().weights()
                               : part == Part::kMaster ? shard().master()
                                                       : optimizer_->slot(shard(), part == Part::kFirstMoment ? 0 : 1);
    return shard().own_values(i, flat).values.view(parameters_[i].sizes);
  }
  void write(Part part, std::size_t i, const torch::Tensor& values) override {
    const torch::NoGradGuard no_grad;
    read(part, i).copy_(values);
    if (part == Part::kMaster) read(Part::kWeight, i).copy_(values);
  }
  std::int64_t updates() const override { return optimizer_->steps(); }
  void set_updates(std::int64_t updates) override {
    checkpoint::CheckpointContents state;
    state.optimizer = optimizer_->assemble();
    state.optimizer["optimizer.step"] = torch::tensor(updates, torch::TensorOptions().dtype(torch::kInt64));
    optimizer_->load(checkpoint::ContentsSource(state));
  }

  void submit(const std::vector<data::Batch>& batches, double learning_rate) override {
    const double targets = static_cast<double>(batches.back().global_samples * job_.batch.sequence_length);
    std::vector<parallel::MicroBatch> micro_batches;
    for (const data::Batch& batch : batches) {
      parallel::MicroBatch micro{batch.input, batch.target, {}};
      micro.loss_weight = 1.0 / targets;
      micro_batches.push_back(micro);
    }
    const double loss = model_->run(micro_batches).loss;
    const double norm = std::sqrt(model_->squared_norm());
    optimizer_->step(learning_rate, clip_factor(norm, job_.optimizer.clip_norm));
    result_ = {loss / targets, norm, false, 0.0};
  }
  Result wait() override { return result_; }

  Evaluation evaluate(const data::Batch& batch) override {
    parallel::MicroBatch micro{batch.input, batch.target, {}};
    micro.context.training = false;
    const parallel::ChunkSums sums = model_->evaluate(micro);
    return {sums.loss, static_cast<double>(sums.targets), static_cast<double>(sums.correct)};
  }
  std::string choices() const override { return "chosen"; }
  void adopt_choices(const std::string& text) override { adopted = text; }
  double peak_memory_bytes() const override { return 12345; }

  std::string adopted;

 private:
  const parallel::FlatShard& shard() const { return *model_->shards().front(); }

  spec::Job job_;
  comm::LocalWorld world_;
  std::unique_ptr<parallel::ParallelModel> model_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
  std::vector<Parameter> parameters_;
  Result result_;
};

inline DeviceStepChoice fake(const spec::Job& job, const plan::Run&, torch::Device) {
  return {std::make_unique<FakeStep>(job), {}};
}

}  // namespace lockstep::engine
