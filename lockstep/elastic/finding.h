// What a health check of a node found: telemetry's NodeFinding, under the name that elastic/ uses.
#pragma once

#include "lockstep/telemetry/node_finding.h"

namespace lockstep::elastic {

using Finding = telemetry::NodeFinding;
using telemetry::describe;
using telemetry::Severity;
using telemetry::to_json;

}  // namespace lockstep::elastic
