// Tags of runs: words that people give them to find them again.
#pragma once

#include <string>
#include <vector>

namespace lockstep::telemetry {

// Sorted, each once; UserError (bad input) for more than 32, or one that is not 1 to 64 bytes of UTF-8 without control
// characters (run_store.h: set_tags).
std::vector<std::string> checked_tags(std::vector<std::string> tags);

}  // namespace lockstep::telemetry
