// Runs recorded as JSON lines, written into another store.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>

#include "lockstep/telemetry/run_store.h"

namespace lockstep::telemetry {

// Reads a file, or the *.jsonl of a folder, and writes every record to the run that it names; returns how many of each
// run. Records that the store has are replaced by the same. UserError (bad input, file:line) for a line that is none;
// what came before it is in the store.
std::map<std::string, std::int64_t> import_lines(const std::filesystem::path& path, RunStore& store);

}  // namespace lockstep::telemetry
