// TrainingState: everything of one rank that a step reads or changes, and its way into and out of a checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/checkpoint/pieces.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/open_datasets.h"
#include "lockstep/engine/device_step.h"
#include "lockstep/engine/executor.h"
#include "lockstep/engine/schedule.h"
#include "lockstep/parallel/parallel_model.h"
#include "lockstep/spec/job.h"
#include "lockstep/telemetry/ledger.h"

namespace lockstep::engine {

// Belongs to one rank's thread.
struct TrainingState {
  data::Datasets datasets;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<data::Loader> loader;
  std::int64_t step = 0;         // optimizer steps done (skipped ones included)
  std::int64_t total_steps = 0;  // of the whole job
  data::Position position;       // behind the steps done, whatever is staged
  // What the executor has of the next step already.
  struct Staged {
    std::int64_t samples = 0;  // of the global batch
    data::Position start, behind;
    telemetry::SamplesRead read;  // by this rank
  };
  std::optional<Staged> staged;
  std::optional<Staged> in_step;        // of the step that is being done
  bool pinned = false;                  // batches in page-locked memory
  std::function<void()> before_update;  // of every step (StepInput); may be empty
  std::int64_t batch_ranks = 1;         // data ranks that the batch is that of (engine/kept_batch.h)
  double rate_factor = 1.0;             // on the learning rate, for steps of another size (batch.on_resize)
  std::shared_ptr<const LearningRate> learning_rate;
  nlohmann::json data_contents;  // what the data holds, for checkpoints (engine/resume_check.h)
  telemetry::Ledger ledger;      // the samples of the steps done; the same on every rank
  telemetry::SampleOrder order;
  std::int64_t replicas = 1;        // ranks that load the same samples
  std::optional<double> last_loss;  // of the last step done; nothing where it is not known

  // Samples of the step that begins at `position` after `steps` steps.
  std::int64_t global_batch_at(std::int64_t steps, data::Position at) const {
    return loader->schedule().global_at(steps, at.epoch * loader->dataset().size() + at.samples);
  }
};

// What the ledger says of `step`, the one of `staged`. Without `read` not all ranks told what they read.
telemetry::LedgerEntry ledger_entry(const TrainingState& state, const TrainingState::Staged& staged, std::int64_t step,
                                    const std::optional<telemetry::SamplesRead>& read);

struct TrainingOptions {
  torch::Device device = torch::kCPU;
  DeviceStepMaker make_step = make_device_step;
  parallel::ModelFactory make_model = nn::build_model;
  std::int64_t batch_ranks = 0;  // 0: those of the layout
  double rate_factor = 1.0;
  bool begin_weights = true;                          // false: the caller restores them
  std::shared_ptr<telemetry::SpanLog> log = nullptr;  // hears of what the loader does
  data::Notice notice = {};                           // hears of data that is left out
};

// Builds executor and loader for this rank of the run that the job became. Collective. Throws UserError for what the
// job cannot have.
TrainingState build_training_state(const spec::Job& job, const plan::Run& run, comm::Communicator& world,
                                   const TrainingOptions& options = {});

// Optimizer steps that the job's goal (steps, tokens or epochs) comes to.
std::int64_t total_steps_of(const spec::Job& job, const data::Loader& loader);

// Steps that are left from `position` after `step` steps: `tokens` and `epochs` count samples, so the number of steps
// changes with the samples of a step.
std::int64_t steps_left(const spec::Job& job, const data::Loader& loader, data::Position position, std::int64_t step);

// What a checkpoint keeps of this rank (Executor::save): views of live state. Collective.
checkpoint::CheckpointPart checkpoint_part(TrainingState& state, const spec::Job& job, int world);
// Everything that this rank holds (Executor::hold): views of live state. Not collective.
checkpoint::CheckpointPart live_part(const TrainingState& state, const spec::Job& job, int world);
// The same, copied to host memory.
checkpoint::CheckpointPart held_part(const TrainingState& state, const spec::Job& job, int world);
// The same in host memory when the executor is about to end: what a rank brings to the next generation after a Fault.
// On the CPU nothing is copied, so the state must not change any more.
checkpoint::CheckpointPart left_part(const TrainingState& state, const spec::Job& job, int world);
// The same as whole tensors, of a run of one rank.
checkpoint::CheckpointContents checkpoint_contents(TrainingState& state, const spec::Job& job, int world);

// Puts a loaded checkpoint back. Collective. The number of ranks may differ from when it was saved; compression's error
// feedback is then dropped, and the function returns a sentence that says so (empty otherwise). Throws UserError when
// the checkpoint is of another model, optimizer or data set.
std::string restore(TrainingState& state, const SavedState& saved, const spec::Job& job, int world);
std::string restore(TrainingState& state, const checkpoint::CheckpointContents& contents, const spec::Job& job,
                    int world);

}  // namespace lockstep::engine
