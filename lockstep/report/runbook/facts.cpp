#include "lockstep/report/runbook/facts.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/clock.h"
#include "lockstep/base/units.h"
#include "lockstep/cost/snapshots.h"
#include "lockstep/plan/run.h"
#include "lockstep/planner/cadence.h"
#include "lockstep/planner/money.h"
#include "lockstep/report/json_numbers.h"
#include "lockstep/report/runbook/commands.h"

namespace lockstep::report {
namespace {

using nlohmann::json;

constexpr double kDay = 86400, kHour = 3600, kBillion = 1e9;

const plan::Candidate& best(const RunbookInput& input) { return input.planned.best; }
const spec::NodeGroup& group_of(const RunbookInput& input) { return input.planned.cluster.groups.front(); }

const plan::Interval& rate_of(const RunbookInput& input) {
  const plan::Prediction& prediction = *best(input).prediction;
  return best(input).batch.sequence_length > 0 ? prediction.tokens_per_second : prediction.samples_per_second;
}

double items_per_step(const RunbookInput& input) {
  const plan::BatchPlan& batch = best(input).batch;
  return static_cast<double>(batch.global_sequences * std::max<std::int64_t>(1, batch.sequence_length));
}

double goodput_of(const RunbookInput& input) { return best(input).checkpoint ? best(input).checkpoint->goodput : 1.0; }

plan::Cost cost_at(const RunbookInput& input, double tokens, double per_second) {
  return planner::cost_of(input.planned.cluster, best(input).layout.world(), tokens, per_second, goodput_of(input));
}

planner::CadenceQuestion cadence_of(const RunbookInput& input) {
  return planner::cadence_question(input.planned.model, input.planned.cluster,
                                   best(input).prediction->step_seconds.expected,
                                   input.job.checkpoint.max_lost_seconds);
}

// The world without the nodes that leave together with a lost one; none: the run cannot do with fewer.
const plan::Plan* next_smaller(const RunbookInput& input) {
  return input.smaller.plans.empty() ? nullptr : &input.smaller.plans.front();
}

}  // namespace

bool has_agents(const RunbookInput& input) { return input.scheduler != "mpi"; }

bool survives_in_memory(const RunbookInput& input) {
  if (!has_agents(input) || input.question.run.nodes < 2) return false;
  const plan::Run run = plan::run_of(input.job, best(input));
  return !cost::snapshot_memory(run).needed || cost::snapshot_bytes(run) > 0;
}

double lost_bound(const RunbookInput& input) {
  const spec::CheckpointPolicy& policy = input.job.checkpoint;
  return policy.every_seconds == spec::CheckpointPolicy::kAuto ? policy.max_lost_seconds : 2 * policy.every_seconds;
}

std::optional<plan::CheckpointCadence> cadence_of_run(const RunbookInput& input) {
  if (!best(input).checkpoint) return std::nullopt;
  plan::CheckpointCadence cadence = *best(input).checkpoint;
  const spec::CheckpointPolicy& policy = input.job.checkpoint;
  if (policy.every_seconds == spec::CheckpointPolicy::kAuto) return cadence;
  const double durable = cadence.worst_lost_seconds - cadence.interval_seconds;
  const double by_steps = static_cast<double>(policy.every_steps) * best(input).prediction->step_seconds.expected;
  if (policy.every_seconds <= 0 && by_steps <= 0) return std::nullopt;
  const bool both = policy.every_seconds > 0 && by_steps > 0;
  cadence.interval_seconds = both ? std::min(policy.every_seconds, by_steps) : std::max(policy.every_seconds, by_steps);
  cadence.worst_lost_seconds = cadence.interval_seconds + durable;
  cadence.expected_lost_seconds = cadence.interval_seconds / 2 + durable;
  return cadence;
}

json size_facts(const RunbookInput& input) {
  const plan::Layout& layout = best(input).layout;
  const spec::NodeGroup& group = group_of(input);
  return {{"layout", plan::to_string(layout)},
          {"parameters", spec::parameter_count(input.planned.model)},
          {"gpus", layout.world()},
          {"gpus_per_node", group.devices_per_node},
          {"nodes", input.question.run.nodes},
          {"spares", input.launch.spares},
          {"last_node", input.question.run.nodes - 1},
          {"data_ranks", layout.data_ranks()},
          {"tokens", positive_or_null(input.tokens)},
          {"tokens_per_step", items_per_step(input)},
          {"samples_per_second_per_gpu",
           best(input).prediction->samples_per_second.expected / static_cast<double>(layout.world())},
          {"steps", positive_or_null(std::ceil(input.tokens / items_per_step(input)))},
          {"epochs", positive_or_null(input.job.epochs)}};
}

json memory_facts(const RunbookInput& input) {
  const plan::MemoryBreakdown& memory = best(input).memory;
  return {{"free_gib", (memory.capacity - memory.total()) / kGiB},
          {"used_share", memory.capacity > 0 ? memory.total() / memory.capacity : 0.0},
          {"snapshots_node_gib", memory.snapshots * static_cast<double>(group_of(input).devices_per_node) / kGiB}};
}

json time_facts(const RunbookInput& input) {
  const plan::TimeBreakdown time = best(input).breakdown.value_or(plan::TimeBreakdown{});
  const double whole = std::max(time.total(), 1e-12);
  return {{"compute", time.compute / whole}, {"tp_comm", time.tp_comm / whole},
          {"dp_comm", time.dp_comm / whole}, {"pp_comm", time.pp_comm / whole},
          {"cp_comm", time.cp_comm / whole}, {"ep_comm", time.ep_comm / whole},
          {"bubble", time.bubble / whole},   {"optimizer", time.optimizer / whole},
          {"other", time.other / whole},     {"selection", time.selection / whole}};
}

json money_facts(const RunbookInput& input) {
  const plan::Interval& rate = rate_of(input);
  const double hourly = planner::hourly_price(input.planned.cluster, best(input).layout.world()).usd;
  const plan::Cost billion = cost_at(input, kBillion, rate.expected);
  json facts = {{"usd_per_hour", positive_or_null(hourly)},
                {"usd_per_day", positive_or_null(24 * hourly)},
                {"usd_per_billion", positive_or_null(billion.usd)},
                {"days_per_billion", billion.days},
                {"usd_per_spare_day", positive_or_null(24 * input.question.usd_per_node_hour)}};
  for (const char* key : {"days_low", "days_high", "usd_low", "usd_high"}) facts[key] = nullptr;
  if (!(input.tokens > 0)) return facts;
  const plan::Cost fast = cost_at(input, input.tokens, rate.high), slow = cost_at(input, input.tokens, rate.low);
  facts["days_low"] = fast.days, facts["days_high"] = slow.days;
  facts["usd_low"] = positive_or_null(fast.usd), facts["usd_high"] = positive_or_null(slow.usd);
  return facts;
}

json checkpoint_facts(const RunbookInput& input) {
  const planner::CadenceQuestion question = cadence_of(input);
  const plan::CheckpointCadence cadence = cadence_of_run(input).value_or(plan::CheckpointCadence{});
  const double keep = static_cast<double>(input.job.checkpoint.keep);
  const double interval = cadence.interval_seconds;
  return {{"by_job", input.job.checkpoint.every_seconds != spec::CheckpointPolicy::kAuto},
          {"interval_seconds", positive_or_null(interval)},
          {"stall_seconds", cadence.stall_seconds},
          {"expected_lost_seconds", positive_or_null(cadence.expected_lost_seconds)},
          {"worst_lost_seconds", positive_or_null(cadence.worst_lost_seconds)},
          {"bytes", question.state_bytes},
          {"kept_bytes", (keep + 1) * question.state_bytes},
          {"write_seconds", std::max(0.0, cadence.worst_lost_seconds - interval - cadence.stall_seconds)},
          {"write_bytes_per_second", positive_or_null(question.write_bytes_per_second)},
          {"per_day", interval > 0 ? json(kDay / interval) : json()},
          {"stall_share", interval > 0 ? json(cadence.stall_seconds / interval) : json()},
          {"steps", interval > 0 ? json(std::round(interval / best(input).prediction->step_seconds.expected)) : json()},
          {"bound_seconds", lost_bound(input)},
          {"restart_seconds", question.restart_seconds},
          {"failures_per_1000_node_days", positive_or_null(group_of(input).failures_per_1000_node_days)},
          {"days_between_failures",
           question.failures_per_second > 0 ? json(1 / question.failures_per_second / kDay) : json()},
          {"failures_expected",
           question.failures_per_second > 0 ? json(question.failures_per_second * input.goodput.seconds) : json()}};
}

json recovery_facts(const RunbookInput& input) {
  const sim::RunOnNodes& run = input.question.run;
  const spec::RecoveryPolicy& policy = input.job.recovery;
  const double step = best(input).prediction->step_seconds.expected;
  const double own = cost::snapshot_memory(plan::run_of(input.job, best(input))).own;
  const spec::NodeGroup& group = group_of(input);
  const double nic = group.nic.bytes_per_second * static_cast<double>(std::max<std::int64_t>(1, group.nics_per_node)) /
                     static_cast<double>(group.devices_per_node);
  const double copy = nic > 0 && own > 0 ? own / nic : 0.0;
  const double memory = run.detect_seconds + run.memory_restart_seconds + copy;
  const double shrink = memory + policy.wait_seconds + run.resize_seconds;
  const double disk = cadence_of(input).restart_seconds;
  const plan::Plan* smaller = next_smaller(input);
  const json left = smaller != nullptr ? json(smaller->cluster.groups.front().nodes) : json();
  const double share = smaller != nullptr ? static_cast<double>(smaller->best.layout.world()) /
                                                static_cast<double>(best(input).layout.world())
                                          : 0.0;
  const plan::CheckpointCadence cadence = cadence_of_run(input).value_or(plan::CheckpointCadence{});
  return {{"from_memory", survives_in_memory(input)},
          {"detect_seconds", run.detect_seconds},
          {"wait_seconds", policy.wait_seconds},
          {"wait_until_seconds", run.detect_seconds + policy.wait_seconds},
          {"copy_bytes", own},
          {"copy_seconds", copy},
          {"restart_seconds", run.memory_restart_seconds},
          {"resize_seconds", run.resize_seconds},
          {"memory_total_seconds", memory},
          {"memory_step_seconds", memory + step},
          {"shrink_total_seconds", shrink},
          {"shrink_step_seconds", shrink + step / std::max(share, 1e-9) * (share > 0 ? 1 : 0)},
          {"disk_total_seconds", disk},
          {"disk_expected_seconds", disk + cadence.expected_lost_seconds},
          {"disk_worst_seconds", disk + cadence.worst_lost_seconds},
          {"smaller_nodes", left},
          {"smaller_gpus", smaller != nullptr ? json(smaller->best.layout.world()) : json()},
          {"smaller_layout", smaller != nullptr ? json(plan::to_string(smaller->best.layout)) : json()},
          {"smaller_share", share},
          {"smaller_step_seconds", share > 0 ? json(step / share) : json()},
          {"usd_of_a_recovery",
           positive_or_null(planner::hourly_price(input.planned.cluster, best(input).layout.world()).usd *
                            (memory + step / 2) / kHour)}};
}

json runbook_facts(const RunbookInput& input) {
  json facts = {{"schema", "lockstep.runbook/1"},
                {"version", input.version},
                {"made_at", utc_timestamp(input.made_at)},
                {"scheduler", input.scheduler},
                {"plan", input.plan},
                {"job", job_facts(input)},
                {"size", size_facts(input)},
                {"memory", memory_facts(input)},
                {"time_shares", time_facts(input)},
                {"money", money_facts(input)},
                {"checkpoint", checkpoint_facts(input)},
                {"recovery", recovery_facts(input)},
                {"alerts", alert_facts(input)},
                {"strategies", planner::to_json(input.strategies)},
                {"scaling", planner::to_json(input.scaling)},
                {"goodput", sim::to_json(input.goodput)},
                {"validation", input.validation}};
  facts["scaling_per_gpu"] = json::array();
  for (const planner::ScalingPoint& point : input.scaling.points) {
    const double rate = !point.best                             ? 0.0
                        : point.best->batch.sequence_length > 0 ? point.best->prediction->tokens_per_second.expected
                                                                : point.best->prediction->samples_per_second.expected;
    facts["scaling_per_gpu"].push_back(rate / static_cast<double>(point.devices));
  }
  facts["commands"] = to_json(runbook_commands(input));
  return facts;
}

}  // namespace lockstep::report
