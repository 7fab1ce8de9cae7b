// Pipeline schedules as data: what each rank of a pipeline does, in order. The engine executes the table, the timeline
// draws it played in time, and the closed forms of the cost model are tested against it. Pure functions of values.
//
// The model is cut into stages x chunks pieces; a *position* counts them along the model, a *rank* holds `chunks` of
// them. Dependencies, all of one micro-batch: a forward waits for the forward of the position before it, a backward
// (or input gradient) for that of the position after it and for its own forward, a weight gradient for its own input
// gradient.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/plan/layout.h"

namespace lockstep::plan {

enum class PipelineTaskKind { kForward, kBackward, kInputGradient, kWeightGradient };  // kBackward: both gradients

struct PipelineTask {
  PipelineTaskKind kind = PipelineTaskKind::kForward;
  int chunk = 0;
  int micro = 0;
  bool operator==(const PipelineTask&) const = default;
};

struct PipelineSchedule {
  Schedule schedule = Schedule::kNone;
  int stages = 1;  // ranks of the pipeline
  int chunks = 1;  // per rank (virtual stages)
  int micro_batches = 1;
  std::vector<std::vector<PipelineTask>> ranks;  // [stages], each in the order of execution

  int positions() const { return stages * chunks; }
  // Along the model, 0 .. positions() - 1: every chunk runs over the ranks in their order (chunk x stages + rank),
  // but under zero bubble the second chunk runs back, so that the model makes a V and ends on rank 0 (Qi et al. 2023).
  int position(int rank, int chunk) const;
  int rank_of(int position) const;
  int chunk_of(int position) const { return position / stages; }
};

// The same arithmetic without a table: the rank of `stages` that holds `position`; whether the model makes a V; the
// rank of the pipeline that holds its end, where the head is; the layers at a position, which are stage_layers or as
// even as possible, the remainder at the first positions.
int pipeline_rank_of(Schedule schedule, int stages, int position);
bool makes_a_v(const Layout& layout);
std::int64_t head_rank(const Layout& layout);
std::int64_t layers_at(const Layout& layout, std::int64_t model_layers, std::int64_t position);

// none          one stage: forward, backward, micro-batch by micro-batch
// gpipe         all forwards, then all backwards (Huang et al. 2019)
// 1f1b          stages - rank - 1 forwards ahead, then forward and backward in turn (Narayanan et al. 2019, 2021)
// interleaved   the same over several chunks per rank, in rounds of `stages` micro-batches (Narayanan et al. 2021). Any
//               number of micro-batches: the last round may be short
// zero_bubble   input and weight gradients apart: ZB-H1 with one chunk per rank, ZB-V with two (Qi et al. 2023); no
// rank
//               holds more than the first of 1F1B does
// One stage may have any schedule. Arguments that find_layout_problem() would refuse are a bug of the caller. The table
// is verified().
PipelineSchedule make_pipeline_schedule(Schedule schedule, int stages, int chunks, int micro_batches);

// The first thing wrong with a table, as one line; nothing when it is right: every (chunk, micro-batch) of every rank
// has its forward and its backward (or both its gradients) exactly once; micro-batches pass a position in their order,
// so that a channel per neighbouring pair of positions and direction needs no tags; no rank waits forever when each
// works through its list with blocking receives and sends that never block; and no rank holds more than
// chunks_in_flight().
std::optional<std::string> find_schedule_problem(const PipelineSchedule& schedule);

// The table itself; an InternalError where find_schedule_problem() finds one. Whoever runs a table runs a verified one.
PipelineSchedule verified(PipelineSchedule table);

// Peak number of (chunk, micro-batch) activations that `rank` holds: from the start of a forward to the end of its
// backward, where that is split to the end of its weight gradient.
int peak_in_flight(const PipelineSchedule& schedule, int rank);

// The same in closed form; a chunk is 1/chunks of the layers of a rank. Exact but for ZB-V with fewer micro-batches
// than stages, which may hold less.
//   gpipe        all
//   1f1b         stages - rank micro-batches
//   interleaved  Megatron's warm-up of 2 (stages - rank - 1) + (chunks - 1) stages, and one
//   zero_bubble  what the first rank of 1F1B holds
std::int64_t chunks_in_flight(Schedule schedule, std::int64_t stages, std::int64_t rank, std::int64_t chunks,
                              std::int64_t micro_batches);

// Seconds of one micro-batch at one position.
struct TaskSeconds {
  double forward = 0;
  double backward_input = 0;  // a joint backward takes both
  double backward_weight = 0;
  double send = 0;  // from here to the next position, and of the gradient back; nothing where both are on one rank
};

struct PlayedTask {
  PipelineTask task;
  int rank = 0;
  double start = 0;
  double end = 0;
};

// Every task with its time, by rank and in the order of its list. A task starts as soon as its rank is free and its
// inputs have arrived; a send takes time on the way but none of its sender's. `per_position` has positions() entries.
// The table must be free of problems.
std::vector<PlayedTask> play(const PipelineSchedule& schedule, const std::vector<TaskSeconds>& per_position);

// Of a played step, which lasts from 0 until the last rank has ended its last task.
double step_seconds(const std::vector<PlayedTask>& played);
double busy_seconds(const std::vector<PlayedTask>& played, int rank);
// What of the step `rank` is not at work: before its first task, between tasks and after its last.
double idle_seconds(const std::vector<PlayedTask>& played, int rank);
// Idle part of stages x step_seconds(), 0 to 1.
double idle_share(const std::vector<PlayedTask>& played, int stages);

}  // namespace lockstep::plan
