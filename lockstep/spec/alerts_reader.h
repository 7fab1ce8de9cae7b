// The `alerts:` section of a job file, read strictly and written back.
#pragma once

#include <string>

#include "lockstep/base/map_reader.h"
#include "lockstep/spec/alerts.h"

namespace lockstep::spec {

// Absent: `alerts` stays as it is. Throws UserError with file:line:column.
void read_alerts(MapReader& job, Alerts& alerts);
// "alerts:\n  slow_down: ...\n", with its line breaks.
std::string alerts_text(const Alerts& alerts);

}  // namespace lockstep::spec
