#include "lockstep/plan/pipeline_schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/plan/zero_bubble.h"

namespace lockstep::plan {
namespace {

// The k-th forward (or backward) of a rank: rounds of as many micro-batches as stages go through every chunk, the
// backwards through the last chunk first. One chunk: simply micro-batch k.
PipelineTask task_of_round(const PipelineSchedule& schedule, PipelineTaskKind kind, int k) {
  const int round = schedule.stages * schedule.chunks;
  const int chunk = k % round / schedule.stages;
  return {kind, kind == PipelineTaskKind::kForward ? chunk : schedule.chunks - 1 - chunk,
          k / round * schedule.stages + k % schedule.stages};
}

// Forwards that `rank` runs before its first backward, less the one that every turn of forward and backward starts
// with.
int warm_up(const PipelineSchedule& schedule, int rank) {
  const int behind = schedule.stages - rank - 1;
  switch (schedule.schedule) {
    case Schedule::kGpipe:
      return schedule.micro_batches;
    case Schedule::kOneForwardOneBackward:
      return behind;
    case Schedule::kInterleaved:
      return 2 * behind + (schedule.chunks - 1) * schedule.stages;
    case Schedule::kNone:
    case Schedule::kZeroBubble:
      break;
  }
  return 0;
}

// The order is that of whole rounds; the micro-batches that the last one lacks are left out everywhere. What is left
// cannot wait for itself: a micro-batch depends on no other, and order within a rank is kept.
std::vector<PipelineTask> warm_up_and_turns(const PipelineSchedule& schedule, int rank) {
  const int rounds = (schedule.micro_batches + schedule.stages - 1) / schedule.stages;
  const int total = rounds * schedule.stages * schedule.chunks;
  const int ahead = std::min(total, warm_up(schedule, rank));
  std::vector<PipelineTask> tasks;
  tasks.reserve(2 * static_cast<std::size_t>(schedule.micro_batches * schedule.chunks));
  const auto append = [&](PipelineTaskKind kind, int k) {
    const PipelineTask task = task_of_round(schedule, kind, k);
    if (task.micro < schedule.micro_batches) tasks.push_back(task);
  };
  for (int k = 0; k < total + ahead; ++k) {
    if (k < total) append(PipelineTaskKind::kForward, k);
    if (k >= ahead) append(PipelineTaskKind::kBackward, k - ahead);
  }
  return tasks;
}

// Of the first `forwards` of whole rounds those whose micro-batch exists; at most one round and a chunk of the next.
std::int64_t existing_forwards(std::int64_t forwards, std::int64_t stages, std::int64_t chunks,
                               std::int64_t micro_batches) {
  const std::int64_t round = stages * chunks;
  const std::int64_t first = std::min(stages, micro_batches);
  const std::int64_t second = std::min(stages, micro_batches - first);
  if (forwards > round) return chunks * first + std::min(forwards - round, second);
  return forwards / stages * first + std::min(forwards % stages, first);
}

}  // namespace

int pipeline_rank_of(Schedule schedule, int stages, int position) {
  const bool turns = schedule == Schedule::kZeroBubble && position / stages == 1;
  return turns ? stages - 1 - position % stages : position % stages;
}

bool makes_a_v(const Layout& layout) { return layout.schedule == Schedule::kZeroBubble && layout.virtual_stages == 2; }

std::int64_t head_rank(const Layout& layout) { return makes_a_v(layout) ? 0 : layout.pp - 1; }

std::int64_t layers_at(const Layout& layout, std::int64_t model_layers, std::int64_t position) {
  if (!layout.stage_layers.empty()) return layout.stage_layers[static_cast<std::size_t>(position)];
  const std::int64_t positions = layout.pp * layout.virtual_stages;
  return model_layers / positions + (position < model_layers % positions ? 1 : 0);
}

// Turning around is its own inverse, so rank and place within the chunk swap roles.
int PipelineSchedule::position(int rank, int chunk) const {
  return chunk * stages + pipeline_rank_of(schedule, stages, chunk * stages + rank);
}

int PipelineSchedule::rank_of(int position) const { return pipeline_rank_of(schedule, stages, position); }

PipelineSchedule make_pipeline_schedule(Schedule schedule, int stages, int chunks, int micro_batches) {
  LOCKSTEP_ASSERT(stages >= 1 && chunks >= 1 && micro_batches >= 1, "a pipeline without stages, chunks or work");
  LOCKSTEP_ASSERT(schedule != Schedule::kNone || stages == 1, "stages without a schedule");
  const bool one_chunk = schedule != Schedule::kInterleaved && schedule != Schedule::kZeroBubble;
  LOCKSTEP_ASSERT(chunks == 1 || !one_chunk, "chunks that the schedule does not have");
  LOCKSTEP_ASSERT(chunks <= 2 || schedule != Schedule::kZeroBubble, "zero bubble has one chunk or two");
  PipelineSchedule table{schedule, stages, chunks, micro_batches, {}};
  if (schedule == Schedule::kZeroBubble) {
    table.ranks = chunks == 1 ? zero_bubble_line(table) : zero_bubble_v(table);
  } else {
    for (int rank = 0; rank < stages; ++rank) table.ranks.push_back(warm_up_and_turns(table, rank));
  }
  return verified(std::move(table));
}

PipelineSchedule verified(PipelineSchedule table) {
  const std::optional<std::string> problem = find_schedule_problem(table);
  LOCKSTEP_ASSERT(!problem, fmt::format("schedule {}: {}", to_string(table.schedule), *problem));
  return table;
}

std::int64_t chunks_in_flight(Schedule schedule, std::int64_t stages, std::int64_t rank, std::int64_t chunks,
                              std::int64_t micro_batches) {
  switch (schedule) {
    case Schedule::kNone:
      return 1;
    case Schedule::kGpipe:
      return micro_batches;
    case Schedule::kOneForwardOneBackward:
      return std::min(micro_batches, stages - rank);
    case Schedule::kInterleaved:
      return existing_forwards(2 * (stages - rank - 1) + (chunks - 1) * stages + 1, stages, chunks, micro_batches);
    case Schedule::kZeroBubble:
      return std::min(micro_batches, stages) * chunks;
  }
  return 1;
}

}  // namespace lockstep::plan
