// The bound on lost work: whether a plan's checkpoints can keep it, and the cheapest thing that would.
#pragma once

#include <optional>

#include "lockstep/base/error.h"
#include "lockstep/planner/cadence.h"
#include "lockstep/planner/search/search.h"

namespace lockstep::planner {

// What keeps `question.max_lost_seconds`, changing as little as possible; each is tried with choose_cadence().
struct LostWorkRemedy {
  double write_bytes_per_second = 0;  // of the storage; 0: no storage is fast enough
  double step_seconds = 0;            // of a step, where steps are what is too long; 0: no step is short enough
};
LostWorkRemedy cheapest_remedy(const CadenceQuestion& question);

// The refusal (exit code 3) of a plan whose checkpoints cannot keep the bound: what a failure may cost, why, and the
// cheapest remedy. None where they can, where `best` has no cadence, and for adapters, whose state is smaller than
// what the cadence counts. `request` is the plan's.
std::optional<UserError> find_lost_work_problem(const SearchRequest& request, const plan::Candidate& best);

}  // namespace lockstep::planner
