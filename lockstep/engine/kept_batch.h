// A run that goes on with another number of data ranks keeps the samples of its steps, or scales them and its learning
// rate, as batch.on_resize says (docs/reference/resume-and-health.md).
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/pieces.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/plan/run.h"
#include "lockstep/spec/batch_schedule.h"

namespace lockstep::engine {

// The batch that a state was trained with.
struct SavedBatch {
  spec::BatchSchedule schedule;
  std::int64_t data_ranks = 1;  // that `accumulation` counted
  double rate_factor = 1.0;
};
nlohmann::json batch_facts(const spec::BatchSchedule& schedule, std::int64_t data_ranks, double rate_factor);
// Checkpoints of older versions know the samples of a step, and their job the data ranks. Nothing where it does not
// say.
std::optional<SavedBatch> saved_batch_of(const checkpoint::CheckpointFacts& facts);

struct KeptBatch {
  spec::BatchSchedule schedule;
  std::int64_t data_ranks = 0;  // that the schedule is that of: the run's own, or those that it began with
  double rate_factor = 1.0;
  std::string note;  // for people; "" where nothing changed
};
// The batch of a run of `job` that goes on from a state with `saved`.
KeptBatch keep_batch(const spec::Job& job, const plan::Run& run, const std::optional<SavedBatch>& saved);

// Collective: the batch of the state that the ranks hold in memory, else of the checkpoint `resume_from`; nothing where
// the run begins.
std::optional<SavedBatch> find_saved_batch(comm::Communicator& world,
                                           const std::vector<checkpoint::CheckpointPart>* held,
                                           const std::string& resume_from);

}  // namespace lockstep::engine
