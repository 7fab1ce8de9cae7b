// Parts of the page that its formats share.
#pragma once

#include <string>
#include <vector>

#include "lockstep/report/canvas/front.h"
#include "lockstep/report/recipe/recipe.h"

namespace lockstep::report {

std::string subtitle_of(const Recipe& recipe);  // "study 2026...; found 2026-11-15; use until 2027-02-13"
Front front_of(const Recipe& recipe);
// Names and versions; that they were not recorded, where they were not.
std::vector<std::pair<std::string, std::string>> holds_for(const Recipe& recipe);
std::string footer_of(const Recipe& recipe);
std::string check_word(const CheckResult& check);  // "holds", "no longer holds"
std::string recheck_sentence(const Recipe& recipe);

// Header and the changed settings, at most `most`; one more row says how many are omitted. Four columns, three where
// reverts were not asked for.
std::vector<std::vector<std::string>> setting_rows(const Recipe& recipe, std::size_t most);
// "Leave the other 5 as they are: a = 1, b = 2."; "" when there are none.
std::string rest_sentence(const Recipe& recipe);
// Which knobs need no attention, and why.
std::vector<std::string> indifference(const Recipe& recipe);

// The first `most` items, and one that says how many more there are.
std::vector<std::string> cut(std::vector<std::string> items, std::size_t most);

// How much larger or smaller than usual text is, so that the page is one and full: 1.1 down to two thirds.
double page_scale(const Recipe& recipe, const StudyView& study);

}  // namespace lockstep::report
