// At the end of a run of several nodes: records of the other nodes, brought to the first rank's home.
#pragma once

#include <filesystem>

#include "lockstep/engine/run_context.h"

namespace lockstep::engine {

// Called by every rank of a run on several nodes, when its work is done. `own_home` is where this rank has recorded
// (JSON lines). The first rank asks for the files that it does not see under its own home and writes them there, so
// that a report has all ranks. Of each file at most the last 8 MiB travel. What is lost is an event and a note of the
// run, never an error: the work is done. Blocks, at most for the group's timeout.
void gather_records(RunContext& context, const std::filesystem::path& own_home);

}  // namespace lockstep::engine
