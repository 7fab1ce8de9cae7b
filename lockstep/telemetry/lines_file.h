// Files of JSON lines: records of runs and of studies. Whole lines only: what a kill cut short is left out by readers
// and taken away by the next writer.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::telemetry {

// Text on one line; bytes that are not UTF-8 are replaced.
std::string one_line(const nlohmann::json& value);

// A file that one process appends to. All members throw UserError (environment).
class LinesFile {
 public:
  enum class Open { kNew, kExisting, kEither };
  LinesFile(std::filesystem::path path, Open how);

  // False when another holder has it. The kernel drops the lock with the process.
  bool lock();
  // Before the first append to a file that was there: a line that a kill cut short must not run into the next one.
  void drop_torn_end();
  // All of the text (lines with their newlines) or none of it; `durable`: on disk when it returns.
  void append(std::string_view text, bool durable);

 private:
  std::filesystem::path path_;
  UniqueFd file_;
  off_t end_ = 0;
};

// How far a file has been read: whole lines only, so that reading goes on where a writer appends.
struct LinesPosition {
  std::int64_t bytes = 0;
  int lines = 0;
};

// Calls `take` for every line from `position` on that is neither empty nor cut short, and moves `position` behind it;
// returns whether the last one was cut short. UserError: environment when the file cannot be opened, bad input for a
// line of more than 64 MiB.
using TakeLine = std::function<void(const std::string& line, const SourcePlace& place)>;
bool read_lines(const std::filesystem::path& path, LinesPosition& position, const TakeLine& take);
bool read_lines(const std::filesystem::path& path, const TakeLine& take);  // from the beginning

}  // namespace lockstep::telemetry
