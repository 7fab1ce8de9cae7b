// What the job's file settles, in the units of this run: limits of alerts, recovery, checkpoints.
#include <algorithm>
#include <filesystem>

#include "lockstep/planner/cadence.h"
#include "lockstep/planner/money.h"
#include "lockstep/report/json_numbers.h"
#include "lockstep/report/runbook/facts.h"
#include "lockstep/telemetry/node_alerts.h"

namespace lockstep::report {

using nlohmann::json;

namespace {

// From the folder that the commands are typed in, where it is below that.
std::string shown_path(const RunbookInput& input, const std::string& path) {
  const std::filesystem::path relative = std::filesystem::path(path).lexically_relative(input.directory);
  return path.empty() || relative.empty() || *relative.begin() == ".." ? path : relative.string();
}

}  // namespace

json job_facts(const RunbookInput& input) {
  const spec::Job& job = input.job;
  return {{"name", job.name},
          {"file", input.job_file},
          {"lora_rank", job.lora.rank},
          {"fine_tunes", job.lora.rank > 0 || !job.weights.empty()},
          {"weights", shown_path(input, job.weights)},
          {"data", shown_path(input, job.data.path)},
          {"directory", shown_path(input, job.checkpoint.directory)},
          {"keep", job.checkpoint.keep},
          {"max_lost_seconds", job.checkpoint.max_lost_seconds},
          {"stop_seconds", job.checkpoint.stop_seconds},
          {"notice_seconds", input.launch.notice_seconds},
          {"restarts", job.recovery.restarts},
          {"standby", job.recovery.standby},
          {"silence_seconds", job.recovery.silence_seconds},
          {"exchange_seconds", job.communication.timeout_seconds},
          {"hang_seconds", 2 * job.communication.timeout_seconds},
          {"replica_check_every", job.health.replica_check_every},
          {"webhook", !job.alerts.webhook.empty()},
          {"command", !job.alerts.command.empty()}};
}

json alert_facts(const RunbookInput& input) {
  const spec::Alerts& alerts = input.job.alerts;
  const plan::Interval& step = input.planned.best.prediction->step_seconds;
  const double daily = 24 * planner::hourly_price(input.planned.cluster, input.planned.best.layout.world()).usd;
  const double state = planner::cadence_question(input.planned.model, input.planned.cluster, step.expected,
                                                 input.job.checkpoint.max_lost_seconds)
                           .state_bytes;
  const auto rule = [&](spec::AlertRule name, json figures) {
    figures["on"] = alerts.is_on(name);
    return figures;
  };
  using enum spec::AlertRule;
  json facts;
  facts["hold_seconds"] = alerts.hold_seconds;
  facts["slow_down"] = rule(kSlowDown, {{"limit", alerts.slow_down},
                                        {"step_seconds", step.expected * (1 + alerts.slow_down)},
                                        {"usd_per_day", positive_or_null(daily * alerts.slow_down)}});
  facts["mfu_drop"] =
      rule(kMfuDrop, {{"limit", alerts.mfu_drop}, {"step_seconds", step.expected / (1 - alerts.mfu_drop)}});
  facts["below_prediction"] = rule(kBelowPrediction, {{"limit", alerts.below_prediction},
                                                      {"step_seconds", step.high * (1 + alerts.below_prediction)}});
  facts["straggler"] = rule(kStraggler, {{"limit", alerts.straggler}});
  facts["loss_spike"] = rule(kLossSpike, {{"limit", alerts.loss_spike}});
  facts["nonfinite"] = rule(kNonfinite, json::object());
  facts["gradient_outlier"] = rule(kGradientOutlier, {{"limit", alerts.gradient_outlier}});
  facts["loader_stall"] =
      rule(kLoaderStall, {{"limit", alerts.loader_stall}, {"wait_seconds", step.expected * alerts.loader_stall}});
  facts["memory_creep"] = rule(kMemoryCreep, {{"limit", alerts.memory_creep}});
  facts["checkpoint_overdue"] =
      rule(kCheckpointOverdue,
           {{"limit", alerts.checkpoint_overdue}, {"age_seconds", alerts.checkpoint_overdue * lost_bound(input)}});
  facts["heartbeat"] =
      rule(kHeartbeat, {{"limit_seconds", std::max(alerts.heartbeat_seconds, telemetry::kUsualSteps * step.expected)}});
  facts["disk_filling"] = rule(
      kDiskFilling, {{"limit_seconds", alerts.disk_seconds}, {"least_bytes", telemetry::kCheckpointsLeft * state}});
  facts["node_health"] = rule(kNodeHealth, json::object());
  return facts;
}

}  // namespace lockstep::report
