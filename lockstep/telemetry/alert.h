// Alert: one rule of a run fires or is over (docs/reference/alerts.md). A plain value, and its two forms: an event of
// the run store and a line for people.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "lockstep/spec/alerts.h"
#include "lockstep/telemetry/schema.h"

namespace lockstep::telemetry {

struct Alert {
  spec::AlertRule rule = spec::AlertRule::kSlowDown;
  bool firing = true;   // false: it is over
  std::string subject;  // of several that a rule may fire for at once: "rank 3", a node, a folder; "": the run
  int rank = -1;        // that it is about
  std::int64_t step = -1;
  double time = 0.0;   // seconds since 1970
  double value = 0.0;  // what was seen, in the unit of the rule's limit
  double limit = 0.0;
  double usual = 0.0;         // before; 0: unknown
  double cost_percent = 0.0;  // of the run's throughput, as long as it lasts
  double lost_seconds = 0.0;  // of work that is at stake or gone
  double usd_per_day = 0.0;   // what cost_percent costs; 0: the price is not known
  std::string message;        // one line without the rule's name
  std::string fix;            // a command or a setting
};

// kind `alert`: a warning when it fires (an error: `nonfinite`, `heartbeat`), else for information.
Event to_event(const Alert& alert);
// What to_event() wrote. Throws UserError (bad input) for another event.
Alert alert_of(const Event& event);

// What a rank says to the process that speaks for the run, {"type": "alert", "line"}, and back; nothing for another
// message or one that is not sound.
nlohmann::json alert_message(const Alert& alert);
std::optional<Alert> alert_in(const nlohmann::json& message);

// "alert slow_down: ...; costs 5.3% of the run; do: lockstep diagnose last" or "over slow_down: ...".
std::string to_text(const Alert& alert);

}  // namespace lockstep::telemetry
