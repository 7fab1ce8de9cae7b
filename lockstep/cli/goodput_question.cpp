#include "lockstep/cli/goodput_question.h"

#include <algorithm>

#include "lockstep/base/units.h"
#include "lockstep/planner/money.h"

namespace lockstep::cli {

sim::GoodputQuestion goodput_question(const plan::Plan& plan) {
  sim::GoodputQuestion question;
  const spec::NodeGroup& group = plan.cluster.groups.front();
  const std::int64_t per_node = std::max<std::int64_t>(1, group.devices_per_node);
  const plan::Layout& layout = plan.best.layout;
  sim::RunOnNodes& run = question.run;
  const std::int64_t nodes = (layout.world() + per_node - 1) / per_node;
  const std::int64_t together = (layout.pp * layout.cp * layout.tp + per_node - 1) / per_node;
  run.nodes = static_cast<int>(nodes);
  run.nodes_per_replica = static_cast<int>(nodes % together == 0 ? together : nodes);
  run.from_memory = true;
  if (plan.best.checkpoint) {
    const plan::CheckpointCadence& cadence = *plan.best.checkpoint;
    run.interval_seconds = cadence.interval_seconds;
    run.stall_seconds = cadence.stall_seconds;
    run.background_seconds =
        std::max(0.0, cadence.worst_lost_seconds - cadence.interval_seconds - cadence.stall_seconds);
  }
  if (plan.best.prediction) run.memory_lost_seconds = 0.5 * plan.best.prediction->step_seconds.expected;
  run.detect_seconds = parse_seconds(kDetect);
  run.memory_restart_seconds = parse_seconds(kMemoryRestart);
  run.disk_restart_seconds = parse_seconds(kDiskRestart);
  run.resize_seconds = parse_seconds(kResize);
  question.usd_per_node_hour = group.price_per_device_hour_usd * static_cast<double>(per_node);
  question.usd_per_hour = planner::hourly_price(plan.cluster, layout.world()).usd;
  return question;
}

double failures_per_1000_node_days(const plan::Plan& plan) {
  return plan.cluster.groups.front().failures_per_1000_node_days;
}

}  // namespace lockstep::cli
