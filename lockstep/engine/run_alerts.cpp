#include "lockstep/engine/run_alerts.h"

namespace lockstep::engine {

RunAlerts::RunAlerts(RunContext& context) : context_(context) {
  if (context.rank() == 0) rules_.emplace(telemetry::alert_context(context.job, context.request.run_id));
}

void RunAlerts::stepped(const telemetry::StepSample& sample) {
  if (!rules_) return;
  for (const telemetry::Alert& alert : rules_->observe(sample)) {
    if (context_.recorder) context_.recorder->event(to_event(alert));
    context_.host.send(alert_message(alert));
  }
}

}  // namespace lockstep::engine
