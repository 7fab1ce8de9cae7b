// When a recipe does not apply, from what the study saw and did not see.
#pragma once

#include <string>
#include <vector>

#include "lockstep/report/recipe/recipe.h"

namespace lockstep::report {

// One sentence each: other work, other devices, other results, memory margin, constraints, ranges whose end was
// reached, NCCL.
std::vector<std::string> limits_of(const StudyView& study);

}  // namespace lockstep::report
