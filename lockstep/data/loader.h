// Loader: the micro-batches of one data rank, in order, prefetched by worker threads.
//
// The samples of an epoch are permuted by (seed, epoch) (base/permutation.h). An optimizer step takes the next G
// samples of the permutation, its global batch, as the schedule says (spec/batch_schedule.h); the last one of an epoch
// may be shorter. A rank has M = micro_steps_of(G) micro-steps. A global batch of g samples is cut into P = M x
// data_world parts, part p = [p*g/P, (p+1)*g/P); rank r takes part m*data_world + r at micro-step m. So the global
// batches do not depend on the number of ranks, every sample comes once per epoch, and a batch that does not divide, or
// a short one, is spread over all ranks (a part may be empty).
//
// A Position names a place in the global stream of samples, so a run may continue with other numbers of ranks,
// micro or schedules: the samples not yet consumed of the epoch follow, each once.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "lockstep/data/dataset.h"
#include "lockstep/spec/batch_schedule.h"
#include "lockstep/telemetry/ledger.h"
#include "lockstep/telemetry/span_log.h"

namespace lockstep::data {

// How many samples of `epoch` all ranks together have consumed; always < the size of the data set.
struct Position {
  std::int64_t epoch = 0;
  std::int64_t samples = 0;
  bool operator==(const Position&) const = default;
};

// One micro-batch of this rank.
struct Batch {
  torch::Tensor input;  // see Samples
  torch::Tensor target;
  std::vector<torch::Tensor> more_inputs;
  torch::Tensor documents;
  std::int64_t samples = 0;         // in this micro-batch; 0: nothing to do, but the rank still takes part in the step
  std::int64_t global_samples = 0;  // in the whole optimizer step, over all ranks and micro-steps
  std::int64_t first_index = 0;     // of the first sample inside the global batch
  std::int64_t micro_step = 0;      // 0 .. M-1
  bool last_of_step = false;        // the optimizer steps after this one
  bool last_of_epoch = false;       // and this step ends the epoch
  Position step_start;              // where the step's global batch begins
  telemetry::SamplesRead read;      // the samples that were fetched for it
};

struct LoaderOptions {
  std::int64_t micro = 1;         // samples per rank per micro-step
  std::int64_t accumulation = 1;  // micro-steps per optimizer step, where there is no schedule
  std::optional<spec::BatchSchedule> schedule = std::nullopt;  // samples of every step
  std::int64_t data_rank = 0;
  std::int64_t data_world = 1;
  std::uint64_t seed = 1;
  bool shuffle = true;
  std::int64_t num_workers = 1;      // 0: next() fetches in the caller's thread
  std::int64_t prefetch_factor = 2;  // micro-batches kept ready per worker
  std::int64_t epochs = 0;           // done() once position().epoch reaches this; 0: endless
  double timeout_seconds = 300.0;    // longest wait inside next()
  bool pinned = false;               // batches in page-locked memory, which a GPU copies while others compute
  std::shared_ptr<telemetry::SpanLog> log = nullptr;  // hears of every micro-batch that a worker makes; may be null
};

struct LoaderStatistics {
  double stall_seconds = 0;        // that next() kept the trainer waiting, since construction
  std::int64_t micro_batches = 0;  // delivered since construction
};

// One thread uses a Loader at a time; its workers are its own. The destructor waits for the fetches under way only.
class Loader {
 public:
  // Throws UserError for an empty data set, InternalError for options out of range.
  Loader(std::shared_ptr<const Dataset> dataset, const LoaderOptions& options, Position start = {});
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next micro-batch. Rethrows what a worker threw for this very micro-batch (again at every call, until seek());
  // throws Fault(kTimeout) when it is not there in time. Must not be called when done().
  Batch next();

  bool done() const;

  // Everything before it has been handed out as whole steps. In the middle of a step: where that step began,
  // since a step that was not completed has to be done again.
  Position position() const;

  // Continues from `position` after `step` steps, as if the run had come there by itself; prefetched micro-batches are
  // dropped. Throws UserError when the data set has no such place (it was changed since the position was saved).
  void seek(Position position, std::int64_t step = 0);

  std::int64_t global_batch() const;  // G of the step that begins, or is under way, at position()
  const spec::BatchSchedule& schedule() const;
  std::int64_t steps_per_epoch() const;  // of an epoch begun at its start, in the last phase: ceil(size / G)
  LoaderStatistics statistics() const;
  const Dataset& dataset() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::data
