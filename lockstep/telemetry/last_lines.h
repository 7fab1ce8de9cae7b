// The newest part of a file of JSON lines, for records that travel from one node to another.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace lockstep::telemetry {

struct LastLines {
  std::string text;  // whole lines
  bool cut = false;  // earlier lines were left out
};

// The last lines of the file, at most `most_bytes` of them; nothing when there is no file. Spans are most of a file,
// and the least missed: they get the room that metrics and events leave, and at least half of it.
LastLines last_lines(const std::filesystem::path& path, std::int64_t most_bytes);

}  // namespace lockstep::telemetry
