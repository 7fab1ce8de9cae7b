// The frame of our HTML pages: one style, light or dark, nothing from elsewhere.
#pragma once

#include <string>

#include "lockstep/report/recipe/recipe.h"

namespace lockstep::report {

// `body` is markup. Printed on A4 with all text `print_scale` times its size.
std::string html_page(const std::string& title, const std::string& body, double print_scale);

// What is inside the page of a recipe, for pages that have more.
std::string recipe_body(const Recipe& recipe, const StudyView& study);

}  // namespace lockstep::report
