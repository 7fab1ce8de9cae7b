// The host's side of a suggestion: data loader and environment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/planner/suggest/suggest.h"

namespace lockstep::planner {

// From the tokens a rank consumes per second and the cores it has. Adds its reason to `suggestion.reasons`.
LoaderAdvice choose_loader(Suggestion& suggestion);

// Only what the topology or the memory justifies is set; the NCCL variables that people turn are there as "auto".
std::vector<EnvironmentVariable> choose_environment(const Suggestion& suggestion);

}  // namespace lockstep::planner
