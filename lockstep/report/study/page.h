// The long page of a study: the recipe and every plot.
#pragma once

#include <string>

#include "lockstep/report/recipe/recipe.h"

namespace lockstep::report {

// Self-contained HTML with drawings inline; details on hover, no scripts.
std::string study_page(const Recipe& recipe, const StudyView& study);

}  // namespace lockstep::report
