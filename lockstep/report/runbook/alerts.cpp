// When the run speaks up, with the limits of this plan, and what to do.
#include <fmt/format.h>

#include "lockstep/report/runbook/facts.h"
#include "lockstep/report/runbook/sections.h"

namespace lockstep::report {
namespace {

// A rule that this run watches, in its own figures.
struct AlertRow {
  spec::AlertRule rule;
  std::string fires;
  std::string todo;
};

std::string at(const char* rule, const char* key) { return fmt::format("/alerts/{}/{}", rule, key); }

std::vector<AlertRow> pace_rows(Quotes& q) {
  using enum spec::AlertRule;
  const std::string expected = q.seconds("/plan/best/prediction/step_seconds");
  const std::string cost =
      q.has(at("slow_down", "usd_per_day"))
          ? fmt::format(", which costs {} a day or more", q.dollars(at("slow_down", "usd_per_day")))
          : std::string();
  return {
      {kSlowDown,
       fmt::format("a step takes {} longer than before: {} where {} is usual{}", q.percent(at("slow_down", "limit")),
                   q.seconds(at("slow_down", "step_seconds")), expected, cost),
       "lockstep diagnose last names the cause; a slow node is drained and its ranks move"},
      {kMfuDrop,
       fmt::format("throughput creeps {} below the best of the run: {} a step instead of {}",
                   q.percent(at("mfu_drop", "limit"), 0), q.seconds(at("mfu_drop", "step_seconds")), expected),
       "compare with an earlier stretch: lockstep diagnose last; check temperatures and the file system"},
      {kBelowPrediction,
       fmt::format("steps take longer than {}: {} beyond the slow end of the plan",
                   q.seconds(at("below_prediction", "step_seconds")), q.percent(at("below_prediction", "limit"), 0)),
       "stop paying for it: the plan's assumptions do not hold here; diagnose, calibrate, plan again"},
      {kStraggler,
       fmt::format("one rank is busy {} longer than the median rank", q.percent(at("straggler", "limit"), 0)),
       "lockstep health on its node; drain the node if it stays"},
      {kLoaderStall,
       fmt::format("{} of a step waits for data: {}", q.percent(at("loader_stall", "limit"), 0),
                   q.seconds(at("loader_stall", "wait_seconds"))),
       "resume with more loader.num_workers, or faster storage for the data"}};
}

std::vector<AlertRow> training_rows(Quotes& q) {
  using enum spec::AlertRule;
  return {
      {kLossSpike, fmt::format("losses are {} median deviations above the usual", q.real(at("loss_spike", "limit"))),
       "look at the data of these steps; resume with health.spike=rollback if it does not come down"},
      {kNonfinite, "a loss or a gradient is not a number",
       "that update is skipped; if it comes again, resume with health.nonfinite=rollback"},
      {kGradientOutlier,
       fmt::format("norms of gradients are {} times the usual", q.real(at("gradient_outlier", "limit"))),
       "resume with optimizer.clip_norm set, or a lower learning rate"}};
}

std::vector<AlertRow> place_rows(Writer& writer) {
  using enum spec::AlertRule;
  Quotes& q = writer.q;
  std::vector<AlertRow> rows = {
      {kCheckpointOverdue,
       fmt::format("the newest checkpoint is older than {}: a failure would lose more than it may",
                   q.seconds(at("checkpoint_overdue", "age_seconds"))),
       "is the storage slow or full? lockstep report last; free space, then wait for the next save"}};
  if (writer.input.planned.cluster.is_cpu()) {
    rows.push_back({kMemoryCreep,
                    fmt::format("memory grew by {} and goes on", q.percent(at("memory_creep", "limit"), 0)),
                    "lockstep diagnose last; a restart from a checkpoint gains time"});
  }
  if (!has_agents(writer.input)) return rows;
  rows.push_back(
      {kHeartbeat, fmt::format("no step for {}", q.seconds(at("heartbeat", "limit_seconds"))),
       fmt::format("wait: a hang is noticed after {} at the latest and its ranks are replaced; then diagnose",
                   q.seconds("/job/hang_seconds"))});
  rows.push_back(
      {kDiskFilling,
       fmt::format("less than {} are free where checkpoints go, or the disk is full within {}",
                   q.bytes(at("disk_filling", "least_bytes")), q.seconds(at("disk_filling", "limit_seconds"))),
       "free space, or a smaller checkpoint.keep, before the next save"});
  rows.push_back({kNodeHealth, "a check of a node finds something: GPU, memory, link, disk",
                  writer.input.question.run.nodes > 1
                      ? "a fatal fault makes the node leave by itself; have it repaired, then lockstep health on it"
                      : "do what the line says; a fatal fault before the start refuses the node"});
  return rows;
}

}  // namespace

void add_alerts(Writer& writer) {
  Quotes& q = writer.q;
  writer.add(Heading{"Alerts and what to do"});
  std::string text = fmt::format(
      "The run watches itself; each alert says what was seen, what it costs and when it is over. Rules about times "
      "fire after {}.",
      q.seconds("/alerts/hold_seconds"));
  text += q.is_true("/job/webhook") || q.is_true("/job/command")
              ? " They go where the job's file says."
              : " They go to the terminal and the record; alerts.webhook=env:NAME or alerts.command in the job file "
                "tells people.";
  writer.add(Paragraph{text});
  Table table{.rows = {{"alert", "fires when, in this run", "what to do"}}, .bold_column = 0};
  const auto add = [&](const std::vector<AlertRow>& rows) {
    for (const AlertRow& row : rows) {
      if (!writer.input.job.alerts.is_on(row.rule)) continue;
      table.rows.push_back({to_string(row.rule), row.fires, row.todo});
    }
  };
  add(pace_rows(q));
  add(training_rows(q));
  add(place_rows(writer));
  writer.add(std::move(table));
}

}  // namespace lockstep::report
