// FusedExecutor: a DeviceStep behind the trainer's interface. The next step's batches are fetched while the device
// works.
#pragma once

#include <memory>

#include "lockstep/engine/device_step.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/loss_scaler.h"

namespace lockstep::engine {

// Values as ShardedExecutor begins with: those of job.weights, or the model's initial ones, which depend on (seed,
// name) alone and are drawn on the step's device. Files need host memory for the model once. Returns the parameters
// that job.weights lacked.
std::vector<std::string> load_initial_values(DeviceStep& step, const spec::Job& job);

class FusedExecutor : public Executor {
 public:
  FusedExecutor(const spec::Job& job, std::unique_ptr<DeviceStep> step);

  std::string describe() const override { return step_->describe(); }
  std::int64_t data_rank() const override { return 0; }
  const std::vector<std::string>& initial_parameters() const override { return initial_parameters_; }
  void begin_weights() override { initial_parameters_ = load_initial_values(*step_, job_); }
  void stage(std::vector<data::Batch> batches) override { staged_ = std::move(batches); }
  StepResult step(const StepInput& input) override;
  Evaluated evaluate(const data::Batch& batch, std::int64_t padding_id, bool with_output) override;
  void share_buffers() override {}  // its models have none
  void save(checkpoint::CheckpointPart& part) override { hold(part); }
  void hold(checkpoint::CheckpointPart& part) const override;
  void add_replicas(checkpoint::CheckpointPart&) const override {}  // it is the only rank
  std::int64_t completed_steps() const override { return completed_; }
  std::string restore(const SavedState& saved, bool same_ranks) override;
  void read_state(const SavedState& saved) override { restore(saved, true); }
  void export_weights(const std::string& folder, const std::string& tokenizer_folder) override;
  ExecutorFigures figures() const override;
  DeviceStep& device_step() { return *step_; }

 private:
  spec::Job job_;
  std::unique_ptr<DeviceStep> step_;
  LossScaler scaler_;  // never scales; counts what was skipped
  std::vector<std::string> initial_parameters_;
  std::vector<data::Batch> staged_;
  std::int64_t completed_ = 0;
};

}  // namespace lockstep::engine
