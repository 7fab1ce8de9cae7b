#include "lockstep/sim/step/program.h"

#include <algorithm>
#include <numeric>

#include "lockstep/base/error.h"

namespace lockstep::sim {
namespace {

LinkSeconds scaled(const LinkSeconds& seconds, double factor) {
  return {seconds.inside * factor, seconds.between * factor};
}

LinkSeconds sum(const LinkSeconds& a, const LinkSeconds& b) { return {a.inside + b.inside, a.between + b.between}; }

// ZeRO-3 and ZeRO-2 exchange among the shards of a replica in every pass, experts among ep neighbours (of which cp
// ranks are one data rank's own). Both are blocks of neighbours; where both are there the pass waits for both.
std::int64_t coupled(const cost::StepWork& work, const plan::Layout& layout) {
  const bool in_passes = std::any_of(work.stages.begin(), work.stages.end(), [](const cost::StageWork& stage) {
    return stage.gather.total() + stage.scatter.total() + stage.scatter_each.total() > 0;
  });
  const std::int64_t shards = in_passes ? layout.shard : 1;
  const std::int64_t experts = std::max<std::int64_t>(1, layout.ep / layout.cp);
  return std::lcm(shards, experts);
}

// A chunk's share of its stage: `part` of everything.
PositionProgram position_of(const cost::StageWork& stage, const cost::StepWork& work, double part, double stretch) {
  const double of_chunk = part * stretch;
  PositionProgram position;
  position.forward.compute = of_chunk * (stage.forward - stage.exchange_forward);
  position.forward.exchange = of_chunk * stage.exchange_forward;
  position.weight_gradient.compute = of_chunk * stage.weight_gradient;
  position.input_gradient.compute =
      of_chunk * std::max(0.0, stage.backward - stage.exchange_backward - stage.weight_gradient);
  position.input_gradient.exchange = of_chunk * stage.exchange_backward;
  position.forward.beside = scaled(stage.gather, of_chunk);
  position.input_gradient.beside = scaled(stage.gather, of_chunk);
  position.forward.exposed = position.input_gradient.exposed = work.zero3_exposed;
  // Either ZeRO-3 or ZeRO-2 scatters in every backward.
  position.weight_gradient.beside = sum(scaled(stage.scatter, of_chunk), scaled(stage.scatter_each, of_chunk));
  position.weight_gradient.exposed = stage.scatter_each.total() > 0 ? stage.reduce_exposed : work.zero3_exposed;
  position.send = scaled(stage.send, stretch);
  return position;
}

}  // namespace

double pass_exchange(const PositionProgram& position, plan::PipelineTaskKind kind) {
  switch (kind) {
    case plan::PipelineTaskKind::kForward:
      return position.forward.exchange;
    case plan::PipelineTaskKind::kInputGradient:
      return position.input_gradient.exchange;
    case plan::PipelineTaskKind::kWeightGradient:
      return position.weight_gradient.exchange;
    case plan::PipelineTaskKind::kBackward:
      return position.input_gradient.exchange + position.weight_gradient.exchange;
  }
  return 0;
}

StepProgram program_of(const cost::StepWork& work, const plan::Layout& layout, std::int64_t micro_batches,
                       bool with_spread) {
  LOCKSTEP_ASSERT(static_cast<std::int64_t>(work.stages.size()) == layout.pp, "work of every stage");
  const double stretch = with_spread ? 1 + work.spread_share : 1;
  StepProgram program;
  program.schedule =
      plan::make_pipeline_schedule(layout.schedule, static_cast<int>(layout.pp),
                                   static_cast<int>(layout.virtual_stages), static_cast<int>(micro_batches));
  const int count = program.schedule.positions();
  for (int position = 0; position < count; ++position) {
    const auto& stage = work.stages[static_cast<std::size_t>(program.schedule.rank_of(position))];
    program.positions.push_back(position_of(stage, work, 1.0 / program.schedule.chunks, stretch));
  }
  for (const cost::StageWork& stage : work.stages) {
    program.stages.push_back({.reduce = scaled(stage.reduce, stretch),
                              .reduce_exposed = stage.reduce_exposed,
                              .publish = scaled(stage.publish, stretch),
                              .optimizer = stage.optimizer * stretch,
                              .exchanges_between_nodes = stage.exchanges_between_nodes,
                              .send_bytes = stage.send_bytes,
                              .gradient_bytes = stage.gradient_bytes,
                              .weight_bytes = stage.weight_bytes,
                              .exchange_bytes_per_second = stage.exchange_bytes_per_second});
  }
  program.send_exposed = work.pp_exposed;
  program.overlap_slowdown = work.overlap_slowdown;
  program.host_seconds = work.host_seconds * stretch;
  program.coupled_data_ranks = coupled(work, layout);
  return program;
}

StepProgram program_of(plan::PipelineSchedule schedule, const std::vector<plan::TaskSeconds>& per_position) {
  LOCKSTEP_ASSERT(per_position.size() == static_cast<std::size_t>(schedule.positions()), "times of every position");
  StepProgram program;
  for (const plan::TaskSeconds& seconds : per_position) {
    PositionProgram position;
    position.forward.compute = seconds.forward;
    position.input_gradient.compute = seconds.backward_input;
    position.weight_gradient.compute = seconds.backward_weight;
    position.send = {0, seconds.send};
    program.positions.push_back(position);
  }
  program.stages.resize(static_cast<std::size_t>(schedule.stages));
  program.schedule = std::move(schedule);
  return program;
}

}  // namespace lockstep::sim
