// Scheduler: something that runs a Submission on nodes. One file each; `lockstep launch --on NAME` knows no more of
// them than this.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/process.h"
#include "lockstep/schedulers/submission.h"

namespace lockstep::schedulers {

struct File {
  std::string name;  // below Submission::folder
  std::string text;
  bool secret = false;  // shown as "(secret)" and readable by its owner alone
};

// What submitting means, to look at before and to do then.
struct Script {
  std::vector<File> files;
  std::vector<std::vector<std::string>> commands;  // in this order; none where an API is called instead
  std::vector<std::string> notes;                  // what was assumed, what will not work there
};

enum class Phase { kQueued, kRunning, kDone, kFailed, kCancelled };
struct State {
  Phase phase = Phase::kQueued;
  std::string detail;            // one line: "on n[1-4]", "Priority"
  std::optional<int> exit_code;  // of the run, where the scheduler tells; by kDone 0 otherwise
  int starts = 0;                // how often it was started again, where the scheduler tells
  bool is_over() const { return phase != Phase::kQueued && phase != Phase::kRunning; }
};

// By which a submission is found again.
struct Submitted {
  std::string id;   // the scheduler's own
  std::string run;  // Submission::run
  std::filesystem::path folder;
  nlohmann::json place;  // what else the scheduler needs: a namespace, an address
};

// What a submission prints. read() returns what came since the last call and never blocks.
class LogSource {
 public:
  virtual ~LogSource() = default;
  virtual std::string read() = 0;
};
std::unique_ptr<LogSource> follow_file(const std::filesystem::path& file);  // that may not be there yet
// Standard output of a command, which is started again after `retry_seconds` when it ends badly.
std::unique_ptr<LogSource> follow_command(std::vector<std::string> argv, double retry_seconds = 2.0);

class Scheduler {
 public:
  virtual ~Scheduler() = default;

  // Pure; throws UserError for what this scheduler cannot do with the submission or its settings.
  virtual Script script(const Submission& submission) const = 0;
  // The files of script() are written. Throws UserError with what the scheduler said when it refuses.
  virtual Submitted submit(const Submission& submission) = 0;
  // May block for some seconds. A scheduler that does not answer for a moment is not an error: the last State.
  virtual State state(const Submitted& submitted) = 0;
  virtual std::unique_ptr<LogSource> open_log(const Submitted& submitted) = 0;
  // Ends it in a way that lets the run save. Returns when the scheduler has taken the order.
  virtual void cancel(const Submitted& submitted) = 0;
  // It lives as long as the process that submitted it (mpirun, ssh).
  virtual bool ends_with_submitter() const { return false; }
};

// The names after `--on`, without "local".
std::vector<std::string> scheduler_names();
// Throws UserError for an unknown name and for a section of the settings that cannot be read.
std::unique_ptr<Scheduler> make_scheduler(const std::string& name, const LaunchSettings& settings);

// Runs a program of the scheduler and returns what it printed. Throws UserError (environment) when it is not there,
// fails (with the last line it said) or takes longer than `timeout_seconds`.
std::string run_tool(const std::vector<std::string>& argv, const std::map<std::string, std::string>& environment = {},
                     double timeout_seconds = 60.0);

}  // namespace lockstep::schedulers
