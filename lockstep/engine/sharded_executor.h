// ShardedExecutor: optimizer steps of one rank under any layout, through libtorch's autograd. It owns the rank's part
// of the model, the optimizer and the loss scale.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/engine/executor.h"
#include "lockstep/engine/loss_scaler.h"
#include "lockstep/engine/sharded_optimizer.h"
#include "lockstep/nn/copy_ahead.h"
#include "lockstep/parallel/parallel_model.h"
#include "lockstep/plan/run.h"
#include "lockstep/spec/job.h"

namespace lockstep::engine {

struct ShardedOptions {
  torch::Device device = torch::kCPU;  // not the CPU: the calling thread must have a DeviceThread
  std::int64_t padding_id = -1;        // of the training data
  // Targets that count in every sample of the training data; 0: they differ, so each step's are counted and summed.
  std::int64_t targets_per_sample = 0;
  std::string why = "";  // why the fused step does not run, for describe()
  parallel::ModelFactory make_model = nn::build_model;
  bool begin_weights = true;  // false: the caller does, or restores them
};

class ShardedExecutor : public Executor {
 public:
  // Collective. Throws UserError where the verdict refuses the run.
  ShardedExecutor(const spec::Job& job, const plan::Run& run, comm::Communicator world,
                  const ShardedOptions& options = {});

  std::string describe() const override;
  std::int64_t data_rank() const override { return model_->groups().data_rank; }
  const std::vector<std::string>& initial_parameters() const override { return initial_parameters_; }
  void begin_weights() override;
  void stage(std::vector<data::Batch> batches) override;
  StepResult step(const StepInput& input) override;
  Evaluated evaluate(const data::Batch& batch, std::int64_t padding_id, bool with_output) override;
  void share_buffers() override;
  void save(checkpoint::CheckpointPart& part) override;
  void hold(checkpoint::CheckpointPart& part) const override { add_state(part, true); }
  void add_replicas(checkpoint::CheckpointPart& part) const override;
  std::int64_t completed_steps() const override { return completed_; }
  std::string restore(const SavedState& saved, bool same_ranks) override;
  void read_state(const SavedState& saved) override;
  void export_weights(const std::string& folder, const std::string& tokenizer_folder) override;
  ExecutorFigures figures() const override;

  parallel::ParallelModel& model() { return *model_; }
  ShardedOptimizer& optimizer() { return *optimizer_; }

 private:
  void add_state(checkpoint::CheckpointPart& part, bool everything) const;
  void add_tensors(checkpoint::CheckpointPart& part, bool everything) const;
  void read_masters(const checkpoint::TensorSource& tensors);
  void read_weights(const checkpoint::TensorSource& tensors);
  void read_updates(const checkpoint::TensorSource& tensors);
  parallel::MicroBatch micro_batch(const data::Batch& batch, std::int64_t padding_id, bool training);
  void fill_shared(const StepWishes& wishes, double squared_norm, const parallel::ChunkSums& sums);
  StepWishes wishes_of_all(bool spoiled) const;
  double expert_imbalance() const;
  double targets_of_step(std::int64_t counted, std::int64_t samples);

  spec::Job job_;
  spec::Model spec_;
  ShardedOptions options_;
  std::unique_ptr<parallel::ParallelModel> model_;
  std::unique_ptr<ShardedOptimizer> optimizer_;
  LossScaler scaler_;
  std::vector<std::string> initial_parameters_;
  std::int64_t completed_ = 0;
  nn::CopyAhead copies_;
  struct {
    std::vector<parallel::MicroBatch> micro_batches;  // on the device, or on their way
    std::int64_t counted = 0;                         // targets of this data rank
    std::int64_t samples = 0;                         // of the global batch
  } staged_;
  static constexpr int kOwnNumbers = 6;  // before those of the save in flight and of the samples read
  static constexpr int kReadAt = kOwnNumbers + checkpoint::SaveProgress::kFields;
  // On its way between ranks; here to outlive the operation.
  static constexpr int kCommAt = kReadAt + telemetry::SamplesRead::kFields;  // a place for each rank's comm_seconds
  // In larger worlds nobody knows the least of them: the exchange must not grow with the ranks.
  static constexpr int kMostCommPlaces = 256;
  std::vector<double> shared_;
};

// Peak resident bytes of this process; on a device, peak bytes that tensors held there (of all ranks that share it).
double peak_memory_bytes(torch::Device device);

}  // namespace lockstep::engine
