// A study's trials as CSV: one row per trial, one column per knob.
#pragma once

#include <string>

#include "lockstep/tune/study/store_journal.h"

namespace lockstep::tune {

// Columns: trial, purpose, set_back, outcome, throughput (empty unless measured), unit, relative_error, samples (how
// many), stopped_early, seconds, gpu_seconds, budget_seconds, started_at (UTC), message, then the knobs in the order of
// the space under their own names ("knob.seconds" for one called like a column before it); inactive knobs are empty.
// Texts that a spreadsheet would take for a formula begin with an apostrophe (planner::spreadsheet_text).
std::string to_csv(const StoredStudy& study);

}  // namespace lockstep::tune
