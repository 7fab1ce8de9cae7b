// What the evaluators that run programs share: command lines without a shell, output taken line by line, and programs
// that end completely, whatever they started.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/file.h"
#include "lockstep/base/process.h"
#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

// A command line as a shell would split it ('...', "...", backslash), but no other shell features: no variables, no
// globs. Leading NAME=value words go to `environment`. UserError (exit 2) for an open quote, an empty command, and for
// bare `|`, `>`, `&&` and their like, which only a shell understands.
struct CommandLine {
  std::vector<std::string> argv;
  std::map<std::string, std::string> environment;
};
CommandLine split_command(const std::string& text);

// Lines out of one pipe. Never blocks; lines longer than 1 MiB are cut there.
class LineReader {
 public:
  LineReader() = default;
  explicit LineReader(UniqueFd fd);

  int fd() const { return fd_.get(); }  // -1 after the end
  // Appends the lines that are there, of 1 MiB at most, so that a program that never stops printing is not followed for
  // ever; the rest of a line without newline comes with the end of the stream.
  void read(std::vector<std::string>& lines);

 private:
  UniqueFd fd_;
  std::string rest_;
};

// The samples of a trial in bounded room: at 4096 of them neighbours are joined to their mean, and from then on each
// stands for twice as many.
class SampleList {
 public:
  void add(double value);
  const std::vector<double>& values() const { return values_; }
  std::int64_t seen() const { return seen_; }

 private:
  std::vector<double> values_;
  std::int64_t seen_ = 0, each_ = 1, open_ = 0;  // `each_` samples make a value; `open_` of the next are in sum_
  double sum_ = 0;
};

// The newest lines of a program's output, for messages; all of them go to `log` as well (cut at 4 MiB).
class OutputTail {
 public:
  OutputTail() = default;
  explicit OutputTail(const std::filesystem::path& log);  // "": none

  void add(const std::string& line);
  void clear() { lines_.clear(); }
  const std::deque<std::string>& lines() const { return lines_; }
  std::string last() const;  // that is not blank, fit for a message; "" when there is none

 private:
  std::deque<std::string> lines_;
  std::ofstream log_;
  std::size_t logged_ = 0;
};

// A program and everything it starts. Every process inherits a mark in its environment, by which even those are found
// and killed that left the process group (torchrun's ranks do) or lost their parent.
class TrialProgram {
 public:
  // Output and errors are piped, input as requested. Throws environment_error when the program is missing.
  static TrialProgram start(SpawnOptions options);

  Process& process() { return process_; }
  // SIGTERM, after `grace_seconds` SIGKILL, to the whole group; then SIGKILL to whatever still carries the mark.
  ExitStatus end(double grace_seconds);
  // Memory of all its processes that is shared with no file.
  double memory_bytes() const;

 private:
  TrialProgram(Process process, std::string mark) : process_(std::move(process)), mark_(std::move(mark)) {}
  Process process_;
  std::string mark_;
};

// Kills processes left behind by trials of killed studies. Returns how many.
int end_orphans();

// Devices a configuration holds: a number, or the value of the knob named. UserError (exit 2) for a knob that is
// not there or has values other than whole numbers above 0.
class DeviceCount {
 public:
  DeviceCount() = default;
  DeviceCount(const std::string& number_or_knob, const Space& space);
  double operator()(const Config& config) const;

 private:
  double number_ = 1;
  std::optional<std::size_t> knob_;
};

}  // namespace lockstep::tune
