// StepProgram: what the ranks of one step do and how long each part takes when nothing disturbs it. Made from a price
// (cost/pricer/work.h) or from measured durations; played by player.h. Plain values, in seconds.
//
//   sim::StepProgram program = sim::program_of(pricer.work(layout, batch), layout, batch.accumulation);
//   sim::StepProgram measured = sim::program_of(table, seconds_by_position);      // of a recorded run
//   measured.stages[0].reduce.between = 0.2;                                      // its all-reduce
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/cost/pricer/work.h"
#include "lockstep/plan/layout.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::sim {

using cost::LinkSeconds;

// One pass of one micro-batch through one position.
struct Pass {
  double compute = 0;   // of the rank's own device and host: what a slow rank stretches
  double exchange = 0;  // collectives inside the pass that it waits for (tp, cp, ep)
  // What ZeRO moves for the pass: the share `exposed` before it begins, the rest while it computes; the pass does not
  // end before that is done.
  LinkSeconds beside;
  double exposed = 1;
  double seconds() const { return compute + exchange; }
};

struct PositionProgram {
  Pass forward, input_gradient, weight_gradient;  // a joint backward is both gradients, one after the other
  LinkSeconds send;                               // to the next position, and of the gradient back
};

// Of one pass: its collectives that it waits for.
double pass_exchange(const PositionProgram& position, plan::PipelineTaskKind kind);

struct StageProgram {
  // Gradients, over all data ranks: the share `reduce_exposed` when the last backward is done; of the rest each chunk's
  // part from when the backward of its last micro-batch begins.
  LinkSeconds reduce = {};
  double reduce_exposed = 1;
  // Updated weights of the step before: the same share before the first pass, the rest until the first forward of each
  // chunk ends.
  LinkSeconds publish = {};
  double optimizer = 0;
  bool exchanges_between_nodes = false;
  // Per rank; for the record alone.
  double send_bytes = 0, gradient_bytes = 0, weight_bytes = 0, exchange_bytes_per_second = 0;
};

struct StepProgram {
  plan::PipelineSchedule schedule;
  std::vector<PositionProgram> positions;  // [schedule.positions()]
  std::vector<StageProgram> stages;        // [schedule.stages]
  double send_exposed = 1;                 // share of a message before the receiver may begin
  double overlap_slowdown = 1;             // of compute while ZeRO or a reduction moves beside it
  double host_seconds = 0;                 // of a step, after the optimizer
  // Data ranks that go through every pass together, in blocks of neighbours: those that exchange inside it (ZeRO-2 and
  // 3, experts). 1: each by itself until the reduction.
  std::int64_t coupled_data_ranks = 1;
};

// A chunk takes its share of the stage. Everything is stretched by 1 + spread_share, which is what the profile knows of
// nodes that are never equally fast; `with_spread` false: not (where jitter is drawn instead).
StepProgram program_of(const cost::StepWork& work, const plan::Layout& layout, std::int64_t micro_batches,
                       bool with_spread = true);

// Given durations: passes are compute, messages take `send` between nodes, and nothing else takes time.
StepProgram program_of(plan::PipelineSchedule schedule, const std::vector<plan::TaskSeconds>& per_position);

}  // namespace lockstep::sim
