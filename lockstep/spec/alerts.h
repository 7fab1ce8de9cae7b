// When a run speaks up, and to whom: the `alerts:` section of a job file (docs/reference/alerts.md). Plain values.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"

namespace lockstep::spec {

enum class AlertRule {
  kSlowDown,           // steps take longer than they did a moment ago
  kMfuDrop,            // throughput creeps away from the best this run had
  kBelowPrediction,    // slower than the slowest the plan expects
  kStraggler,          // one rank is busy longer than the others
  kLossSpike,          // the loss jumps up
  kNonfinite,          // a loss or a gradient is not a number
  kGradientOutlier,    // norms of gradients far above the usual
  kLoaderStall,        // steps wait for data
  kMemoryCreep,        // memory grows from step to step
  kCheckpointOverdue,  // a failure now would lose more than it may
  kHeartbeat,          // no step for too long
  kDiskFilling,        // the disk of the checkpoints will be full soon
  kNodeHealth,         // a check of a node failed
};
constexpr auto names_of(AlertRule) {
  return enum_names<AlertRule::kNodeHealth>("slow_down", "mfu_drop", "below_prediction", "straggler", "loss_spike",
                                            "nonfinite", "gradient_outlier", "loader_stall", "memory_creep",
                                            "checkpoint_overdue", "heartbeat", "disk_filling", "node_health");
}

struct Alerts {
  // Limits; the key of the job file is the rule's name.
  double slow_down = 0.025;         // share of the step time
  double mfu_drop = 0.08;           // share of the best throughput
  double below_prediction = 0.1;    // share beyond the plan's slowest step
  double straggler = 0.1;           // share above the median rank
  double loss_spike = 8.0;          // median deviations above the usual loss
  double gradient_outlier = 5.0;    // times the usual norm
  double loader_stall = 0.1;        // share of the step
  double memory_creep = 0.02;       // share of growth
  double checkpoint_overdue = 1.0;  // times the lost-work bound
  double heartbeat_seconds = 60.0;  // and ten usual steps
  double disk_seconds = 7200.0;     // `disk_filling`: until the disk is full

  std::vector<AlertRule> off = {};
  double hold_seconds = 10.0;   // `hold`: how long a rule about time must have been broken
  double pause_seconds = 60.0;  // `pause`: between two notifications; what comes sooner is told together
  std::string webhook;          // "": none; http(s)://..., `env:NAME` or `file:PATH`, which hold such an address
  std::vector<std::string> command = {};  // run for each notification; empty: none

  bool is_on(AlertRule rule) const {
    for (const AlertRule one : off) {
      if (one == rule) return false;
    }
    return true;
  }
  bool operator==(const Alerts&) const = default;
};

}  // namespace lockstep::spec
