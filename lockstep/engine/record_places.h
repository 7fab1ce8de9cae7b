// Where the ranks of a run are, for whoever reads its record.
#pragma once

#include "lockstep/engine/run_context.h"

namespace lockstep::engine {

// Collective. The first rank records on which node each rank is; nodes are numbered in the order of their first ranks.
void record_places(RunContext& context);

}  // namespace lockstep::engine
