// The rules of a run that look at its steps: feed them a sample of every step, they give back what there is to tell.
// Those that look at ranks, nodes and disks from outside are in node_alerts.h.
//
// No clocks, no files, no threads: the same samples give the same alerts. One object per run, on its first rank.
// What a rule costs in false alarms and how soon it fires is measured: bench/reports/alerts.md.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/spec/job.h"
#include "lockstep/telemetry/alert.h"

namespace lockstep::telemetry {

// What a rule may say about the run.
struct AlertContext {
  spec::Alerts settings = {};
  std::string run = "last";   // for commands that name it
  double usd_per_hour = 0.0;  // of the whole job; 0: not known
  bool loss_scaled = false;   // fp16: a skipped step is how the scale is found
  std::int64_t loader_workers = 1;
};

// Of a job's run: prices from its cluster.
AlertContext alert_context(const spec::Job& job, const std::string& run);

// Fields that are not set are not looked at.
struct StepSample {
  std::int64_t step = 0;
  double time = 0.0;       // seconds since 1970, at its end
  double seconds = 0.0;    // of the step, without what checkpoints and evaluations held it up
  bool disturbed = false;  // a checkpoint or an evaluation ran beside it: its time says nothing
  double items = 0.0;      // samples or tokens of the step: times are compared for the same work only
  std::optional<double> loss;
  std::optional<double> gradient_norm;
  bool skipped = false;                          // the gradient was not finite
  double data_seconds = 0.0;                     // of `seconds`: waited for the loader
  std::optional<double> memory_bytes;            // in use after the step
  double memory_capacity_bytes = 0.0;            // 0: not known
  std::optional<double> checkpoint_age_seconds;  // since the newest durable one began, or since the start
  double checkpoint_bound_seconds = 0.0;         // how old it may become
  double predicted_seconds = 0.0;                // of a step, by the plan; 0: none
  double predicted_slowest_seconds = 0.0;        // the slow end of its range
};

// One rule, or several that look at the same thing.
class AlertWatch {
 public:
  virtual ~AlertWatch() = default;
  virtual void look(const StepSample& sample, std::vector<Alert>& alerts) = 0;
};

std::unique_ptr<AlertWatch> watch_pace(const AlertContext& context);         // slow_down, mfu_drop, below_prediction
std::unique_ptr<AlertWatch> watch_loader(const AlertContext& context);       // loader_stall
std::unique_ptr<AlertWatch> watch_training(const AlertContext& context);     // loss_spike, nonfinite, gradient_outlier
std::unique_ptr<AlertWatch> watch_memory(const AlertContext& context);       // memory_creep
std::unique_ptr<AlertWatch> watch_checkpoints(const AlertContext& context);  // checkpoint_overdue

// All of them, without those that are off.
class StepAlerts {
 public:
  explicit StepAlerts(const AlertContext& context);
  // After every step. The alerts of one step in the order of the rules.
  std::vector<Alert> observe(const StepSample& sample);

 private:
  AlertContext context_;
  std::vector<std::unique_ptr<AlertWatch>> watches_;
};

// `cost_percent` of a day.
double usd_per_day(const AlertContext& context, double cost_percent);

}  // namespace lockstep::telemetry
