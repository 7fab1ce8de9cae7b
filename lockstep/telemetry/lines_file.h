// Files of JSON lines: records of runs and of studies. Whole lines only: what a kill cut short is left out by readers
// and taken away by the next writer.
#pragma once

#include <sys/types.h>

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

// Calls `take` for every line that is neither empty nor cut short; returns whether the last one was. UserError:
// environment when the file cannot be opened, bad input for a line of more than 64 MiB.
bool read_lines(const std::filesystem::path& path,
                const std::function<void(const std::string& line, const SourcePlace& place)>& take);

}  // namespace lockstep::telemetry
