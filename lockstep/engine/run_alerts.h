// Alerts of a run's steps (telemetry/alerts.h): recorded, and said to the process that speaks for the run.
#pragma once

#include <optional>

#include "lockstep/engine/run_context.h"
#include "lockstep/telemetry/alerts.h"

namespace lockstep::engine {

// On the first rank; elsewhere it does nothing. Belongs to the rank's thread.
class RunAlerts {
 public:
  // `context` must outlive the object.
  explicit RunAlerts(RunContext& context);
  bool is_on() const { return rules_.has_value(); }
  void stepped(const telemetry::StepSample& sample);

 private:
  RunContext& context_;
  std::optional<telemetry::StepAlerts> rules_;
};

}  // namespace lockstep::engine
