// Tables and JSON lines of one home as one store.
#pragma once

#include <memory>

#include "lockstep/telemetry/run_store.h"

namespace lockstep::telemetry {

// Neither is null. Writes go to the tables.
std::unique_ptr<RunStore> join_stores(std::unique_ptr<RunStore> tables, std::unique_ptr<RunStore> lines);

}  // namespace lockstep::telemetry
