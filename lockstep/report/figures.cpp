#include "lockstep/report/figures.h"

#include <fmt/format.h>

#include "lockstep/base/units.h"
#include "lockstep/planner/explain/terms.h"

namespace lockstep::report {

std::string describe_group(const spec::NodeGroup& group) {
  std::string text = fmt::format("{} x {} {} ({}), {} {}", group.nodes, group.devices_per_node, group.device.kind,
                                 format_bytes(group.device.memory_bytes), planner::link_name(group.intra.kind),
                                 format_rate(group.intra.bytes_per_second, "B"));
  if (group.nics_per_node > 0) {
    text += fmt::format(", {} x {} {}", group.nics_per_node, planner::link_name(group.nic.kind),
                        format_rate(group.nic.bytes_per_second, "B"));
  }
  if (group.price_per_device_hour_usd > 0)
    text += fmt::format(", {:.4g} USD per GPU-hour", group.price_per_device_hour_usd);
  return text;
}

std::string describe_batch(const plan::BatchPlan& batch, const plan::Layout& layout) {
  const std::string parts =
      fmt::format("micro {} x {} accumulation x {} data ranks", batch.micro, batch.accumulation, layout.data_ranks());
  if (batch.sequence_length == 0) return fmt::format("{} samples = {}", batch.global_sequences, parts);
  return fmt::format("{} sequences of {} ({} tokens) = {}", batch.global_sequences, batch.sequence_length,
                     format_count(static_cast<double>(batch.global_sequences * batch.sequence_length)), parts);
}

std::string describe_cost(const plan::Cost& cost) {
  const std::string time = cost.days < 2 ? format_seconds(cost.days * 86400) : fmt::format("{:.4g} days", cost.days);
  return fmt::format("{}, {} GPU-hours, {} USD", time, format_count(cost.gpu_hours), format_dollars(cost.usd));
}

std::string format_dollars(double usd) { return usd < 1000 ? fmt::format("{:.2f}", usd) : format_count(usd); }

std::string short_layout(plan::Layout layout) {
  layout.precision = spec::Precision::kFp32;  // the default is not printed
  return plan::to_string(layout);
}

}  // namespace lockstep::report
