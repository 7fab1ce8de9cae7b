#include "lockstep/plan/resize.h"

#include <fmt/format.h>

#include "lockstep/plan/verdict.h"

namespace lockstep::plan {
namespace {

std::optional<Layout> with_ranks(Layout layout, std::int64_t ranks) {
  const std::int64_t model = layout.pp * layout.cp * layout.tp;
  if (ranks % model != 0) return std::nullopt;
  const std::int64_t data = ranks / model;
  if (layout.zero == 0) {
    layout.dp = data;
  } else if (layout.dp > 1 && data % layout.shard == 0) {
    layout.dp = data / layout.shard;
  } else {
    layout.dp = 1;
    layout.shard = data;
  }
  if (layout.shard == 1) layout.zero = 0;
  return layout;
}

spec::Cluster with_nodes(spec::Cluster cluster, std::int64_t nodes) {
  spec::NodeGroup& group = cluster.groups.front();
  group.nodes = nodes;
  cluster.name = fmt::format("{}x{}x{}", nodes, group.devices_per_node, group.device.kind);
  return cluster;
}

}  // namespace

std::optional<Plan> resized(const spec::Job& job, const Plan& planned, std::int64_t nodes) {
  if (planned.cluster.groups.size() != 1) return std::nullopt;  // which of unlike nodes are left is not known
  Plan smaller;
  smaller.model = planned.model;
  smaller.cluster = with_nodes(planned.cluster, nodes);
  const auto layout = with_ranks(planned.best.layout, smaller.cluster.devices());
  if (!layout || find_layout_problem(*layout, &job.model)) return std::nullopt;
  smaller.best.layout = *layout;
  smaller.best.knobs = planned.best.knobs;
  smaller.best.batch = planned.best.batch;
  const std::int64_t micro_batches = planned.best.layout.data_ranks() * planned.best.batch.accumulation;
  const std::int64_t data_ranks = layout->data_ranks();
  smaller.best.batch.accumulation = (micro_batches + data_ranks - 1) / data_ranks;
  smaller.best.batch.global_sequences =
      smaller.best.batch.micro * smaller.best.batch.accumulation * data_ranks;  // room for; the engine keeps the batch
  smaller.best.reasons = {fmt::format("{} on {} nodes", to_string(planned.best.layout), nodes)};
  spec::Job resized_job = job;
  resized_job.cluster = smaller.cluster;
  follow(resized_job, smaller.best);
  if (first_refusal(run_of(resized_job, smaller.best))) return std::nullopt;
  return smaller;
}

}  // namespace lockstep::plan
