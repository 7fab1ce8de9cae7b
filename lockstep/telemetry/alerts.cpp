#include "lockstep/telemetry/alerts.h"

#include <algorithm>

namespace lockstep::telemetry {

AlertContext alert_context(const spec::Job& job, const std::string& run) {
  AlertContext context;
  context.settings = job.alerts;
  context.run = run;
  context.loss_scaled = job.precision == spec::Precision::kFp16;
  context.loader_workers = job.loader.num_workers;
  for (const spec::NodeGroup& group : job.cluster.groups) {
    context.usd_per_hour += static_cast<double>(group.nodes * group.devices_per_node) * group.price_per_device_hour_usd;
  }
  return context;
}

StepAlerts::StepAlerts(const AlertContext& context) : context_(context) {
  watches_.push_back(watch_pace(context));
  watches_.push_back(watch_loader(context));
  watches_.push_back(watch_training(context));
  watches_.push_back(watch_memory(context));
  watches_.push_back(watch_checkpoints(context));
}

std::vector<Alert> StepAlerts::observe(const StepSample& sample) {
  std::vector<Alert> alerts;
  for (const auto& watch : watches_) watch->look(sample, alerts);
  std::erase_if(alerts, [&](const Alert& alert) { return !context_.settings.is_on(alert.rule); });
  for (Alert& alert : alerts) {
    alert.step = sample.step;
    alert.time = sample.time;
    if (alert.firing) alert.usd_per_day = usd_per_day(context_, alert.cost_percent);
  }
  return alerts;
}

double usd_per_day(const AlertContext& context, double cost_percent) {
  constexpr double kHours = 24.0;
  return context.usd_per_hour * kHours * cost_percent / 100.0;
}

}  // namespace lockstep::telemetry
