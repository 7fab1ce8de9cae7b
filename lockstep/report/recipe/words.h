// Figures and values in words, shared by the recipe's parts.
#pragma once

#include <string>

#include "lockstep/report/recipe/recipe.h"

namespace lockstep::report {

// "Ring"; "\"\"" for an empty text; "not used" when inactive. Control characters are escaped, long texts cut.
inline constexpr const char* kNotUsed = "not used";
std::string shown_value(const tune::Value& value);

std::string percent(double value);                        // "14.2%"
std::string signed_percent(double value);                 // "+23.4%"
std::string rate(double value, const std::string& unit);  // "51.23k tokens/s"
std::string day(double unix_seconds);                     // "2026-11-15"; "unknown" for 0
std::string launches_of(std::int64_t count);              // "1 launch", "5 launches"

// What reverting a knob costs: "14.2% (11.9 to 16.4)", "none seen (at most 0.8%)",
// "unclear: 3.0% (-2.0 to 8.1)", "does not run", "" when it was not asked.
std::string set_back_words(const tune::KnobImportance& importance);

// "3 launches", or that there were none.
std::string evidence_of(const tune::Estimate& estimate);

// Is at its default, so there is nothing to revert.
bool is_no_set_back(const tune::Estimate& cost);

// Negligible: the interval contains 0 and stays below two points.
bool costs_nothing(const tune::KnobImportance& importance);

}  // namespace lockstep::report
