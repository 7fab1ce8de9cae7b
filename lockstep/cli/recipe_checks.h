// Re-checks of recipes, kept beside the run store: studies/<id>/checks.jsonl, a line each.
#pragma once

#include <optional>
#include <string>

#include "lockstep/report/recipe/check.h"

namespace lockstep::cli {

// Appends. A home that cannot be written is only noted: the check itself is not lost.
void keep_check(const std::string& study, const report::CheckResult& check);

// The newest one; nullopt when there is none. Lines that do not read back are passed over.
std::optional<report::CheckResult> last_check(const std::string& study);

}  // namespace lockstep::cli
