// Settings as a shell, a job or a program takes them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/report/recipe/recipe.h"

namespace lockstep::report {

// Can a shell export it? Letters, digits and underscores, no digit first.
bool is_variable_name(std::string_view name);

// What to paste to run `config` the way the study ran it. Empty when nothing ran.
std::vector<Snippet> ready_to_paste(const StudyView& study, const tune::Config& config);

}  // namespace lockstep::report
