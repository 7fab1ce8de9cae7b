#include "lockstep/cost/pricer/work.h"

#include <algorithm>
#include <cmath>

#include "lockstep/cost/pricer/state.h"
#include "lockstep/cost/traffic.h"

namespace lockstep::cost {
namespace {

LinkSeconds on(const GroupPlacement& group, double seconds) {
  return group.nodes > 1 ? LinkSeconds{0, seconds} : LinkSeconds{seconds, 0};
}

}  // namespace

void Pricer::State::add_data_work(const Context& context, const LinkRates& links, double dense, double expert,
                                  StageWork& work) const {
  const DataSeconds data = data_parallel(context, links, dense, expert);
  work.reduce = data.reduce;
  work.scatter_each = data.each;
  work.publish = data.publish;
  work.reduce_exposed = data.exposed;
  const StackFacts& facts = context.layout.zero == 0 ? replica_facts : fitted.facts;
  work.gradient_bytes = (dense + expert) * travelling_gradient_bytes(context.layout, facts, context.bytes);
  work.weight_bytes = (dense + expert) * context.bytes.weight;
}

StageWork Pricer::State::stage_work(const VisitedStage& visited) const {
  const Context& context = visited.context;
  const plan::Layout& layout = context.layout;
  const StageTime& time = visited.time;
  StageWork work;
  work.forward = time.forward - time.send / 2 - time.dp_forward;
  work.backward = time.backward - time.send / 2 - (time.dp - time.dp_forward);
  work.weight_gradient = time.weight_gradient;
  work.host = time.host;
  work.exchange_forward = time.exchange_forward;
  work.exchange_backward = time.exchange_backward;
  work.exchanges_between_nodes = std::max({context.placements.tp.nodes, context.placements.cp.nodes,
                                           layout.ep > 1 ? context.placements.ep.nodes : 1}) > 1;
  work.exchange_bytes_per_second = bus_bandwidth(visited.links.inner, context.placements.tp).value();
  if (layout.pp > 1) {
    work.send = send_seconds(context, visited.stage, visited.links.inner);
    const LocalSizes local =
        local_sizes(dimensions, layout, static_cast<double>(context.batch.micro), static_cast<double>(sequence));
    work.send_bytes = boundary_bytes(dimensions, local, fitted.facts);
  }
  work.gather = on(context.placements.shard, time.gather);
  work.scatter = on(context.placements.shard, time.scatter);
  const double dense = dense_parameters(layout, visited.stage, visited.layers);
  const double expert = expert_parameters(layout, visited.layers);
  add_data_work(context, visited.links.data, dense, expert, work);
  work.optimizer =
      optimizer_seconds(context, visited.group.rates[static_cast<std::size_t>(layout.precision)], dense, expert);
  return work;
}

StepWork Pricer::State::step_work(const plan::Layout& layout) const {
  const Constants& k = groups[group_of(layout.world() - 1)].constants;
  const Together& waits = together_of(layout);
  StepWork work;
  work.pp_exposed = k.pp_exposed;
  work.zero3_exposed = k.zero3_exposed;
  work.overlap_slowdown = k.overlap_slowdown;
  work.host_seconds = waits.step_seconds;
  work.spread_share = spread_share(layout);
  work.bubble_factor = waits.bubble;
  return work;
}

StepWork Pricer::State::fused_work(const plan::Layout& layout, const plan::BatchPlan& batch) const {
  const StagePrice stage = fused_stage(layout, batch);
  StepWork work;  // one rank, measured as a whole: nothing beside its passes and the optimizer
  StageWork only;
  only.forward = stage.forward_seconds;
  only.backward = stage.backward_seconds;
  only.weight_gradient = stage.weight_gradient_seconds;
  only.optimizer = price_fused(layout, batch).time.optimizer;
  work.stages.push_back(only);
  return work;
}

}  // namespace lockstep::cost
