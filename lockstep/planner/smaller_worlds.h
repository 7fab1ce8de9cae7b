// The worlds that a run may get when nodes are lost, known before it starts.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "lockstep/cost/profile/profile.h"
#include "lockstep/plan/plan.h"
#include "lockstep/spec/job.h"

namespace lockstep::planner {

struct SmallerWorlds {
  std::vector<plan::Plan> plans;       // the run on fewer nodes, largest first, with its memory
  std::map<int, std::string> refused;  // numbers of nodes on which it would not fit, and why, with the figures
};

// plan::resized() for every number of nodes below that of `planned`. A world whose ranks would need more memory than
// they have (counted_candidate(): what `plan` and `train --dry-run` state with this profile, which may be null) is
// refused.
SmallerWorlds smaller_worlds(const spec::Job& job, const plan::Plan& planned, const cost::Profile* profile = nullptr);

}  // namespace lockstep::planner
