// TrainingState: everything of one rank that a step reads or changes, and its way into and out of a checkpoint.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/open_datasets.h"
#include "lockstep/engine/device_step.h"
#include "lockstep/engine/layout_executor.h"
#include "lockstep/engine/loss_scaler.h"
#include "lockstep/engine/optimizer.h"
#include "lockstep/engine/precision.h"
#include "lockstep/nn/copy_ahead.h"
#include "lockstep/nn/model.h"
#include "lockstep/parallel/flat_parameters.h"
#include "lockstep/parallel/gradient_reducer.h"
#include "lockstep/spec/job.h"

namespace lockstep::engine {

// Belongs to one rank's thread. Members are destroyed in reverse order, so what refers to `parameters` comes after it.
//
// A device step trains a whole model on one device by itself. Plain data parallelism keeps the model whole on every
// rank and reduces one flat gradient in buckets, compressed where the job says so; every other layout is the
// executor's. Exactly one of the three is there.
struct TrainingState {
  torch::Device device = torch::kCPU;
  std::unique_ptr<DeviceStep> device_step;
  std::unique_ptr<LayoutExecutor> executor;
  std::shared_ptr<nn::TrainableModel> model;
  std::unique_ptr<parallel::FlatParameters> parameters;
  std::unique_ptr<Optimizer> optimizer;
  LossScaler scaler;
  std::unique_ptr<parallel::GradientReducer> reducer;
  std::unique_ptr<data::Loader> loader;
  data::Datasets datasets;
  std::unique_ptr<nn::CopyAhead> copies;        // of plain data parallelism on a device
  std::vector<data::Batch> staged;              // of the next step, fetched while the device worked on the last one
  std::string why_general;                      // why there is no device step, one clause
  std::vector<std::string> initial_parameters;  // that job.weights lacked
  std::int64_t step = 0;                        // optimizer steps done (skipped ones included)
  std::int64_t total_steps = 0;                 // of the whole job
  std::array<double, 3> shared_sums{};  // loss and wishes on their way between ranks; here to outlive the operation
};

// Builds model, optimizer and loader for this rank of the layout, and makes sure that all ranks begin with the same
// parameters. Collective. Throws UserError for what the job cannot have.
TrainingState build_training_state(const spec::Job& job, const plan::Layout& layout, comm::Communicator& world,
                                   torch::Device device = torch::kCPU,
                                   const DeviceStepMaker& make_step = make_device_step);
// Plain data parallel.
TrainingState build_training_state(const spec::Job& job, comm::Communicator& world);

// Optimizer steps that the job's goal (steps, tokens or epochs) comes to.
std::int64_t total_steps_of(const spec::Job& job, const data::Loader& loader);

// Where the run would go on: behind the steps done, whatever is staged.
data::Position position_of(const TrainingState& state);

// Steps that are left from `position` when the global batch is not what it was: `tokens` and `epochs` count samples, so
// the number of steps changes with the ranks.
std::int64_t steps_left(const spec::Job& job, const data::Loader& loader, data::Position position);

// What a checkpoint keeps: the shared part and this rank's own. Tensors may be views of live state: write them before
// the next step. Whole tensors whatever the layout, so that a run may go on under another one; sharded ones are
// gathered on rank 0 (collective), which alone has the shared part then.
checkpoint::CheckpointContents checkpoint_contents(TrainingState& state, const spec::Job& job, int world);

// Puts a loaded checkpoint back. The number of ranks may differ from when it was saved; compression's error feedback is
// then dropped, and the function returns a sentence that says so (empty otherwise). Throws UserError when the
// checkpoint is of another model, optimizer or data set.
std::string restore(TrainingState& state, const checkpoint::CheckpointContents& contents, const spec::Job& job,
                    int world);

}  // namespace lockstep::engine
