// Child processes: argument vectors (never a shell), pipes, timeouts, whole process groups.
#pragma once

#include <sys/types.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/file.h"

namespace lockstep {

enum class StreamMode {
  kInherit,  // the parent's own
  kPipe,     // a pipe whose other end the Process owns
  kNull      // /dev/null
};

struct SpawnOptions {
  std::vector<std::string> argv;                   // argv[0] is looked up in PATH when it has no '/'
  std::map<std::string, std::string> environment;  // added to this process's environment, or replacing entries
  std::vector<std::string> unset;                  // names removed from the inherited environment
  std::string directory;                           // working directory; "": the parent's
  StreamMode standard_input = StreamMode::kNull;
  StreamMode standard_output = StreamMode::kInherit;
  StreamMode standard_error = StreamMode::kInherit;  // kPipe: a pipe of its own
  std::vector<int> inherited_fds;                    // kept open in the child under the same numbers
  bool own_group = true;        // a new process group, so that signal_group() reaches grandchildren too
  bool die_with_parent = true;  // SIGKILL to the child when the THREAD that called spawn() ends (PR_SET_PDEATHSIG)
};

struct ExitStatus {
  int code = 0;    // exit code, when signal is 0
  int signal = 0;  // the signal that ended it
  bool ok() const { return code == 0 && signal == 0; }
  std::string to_string() const;  // "exit code 1", "signal 9 (Killed)"
};

// One child. Move-only; not thread-safe except that const members may be called while another thread waits.
// The destructor kills the child (its whole group when it has one) and reaps it: no child outlives its Process.
// The child stays a zombie until then, so its process group number cannot be taken by strangers.
class Process {
 public:
  // Throws environment_error when the program is missing or cannot be executed.
  static Process spawn(const SpawnOptions& options);

  Process(Process&& other) noexcept;
  Process& operator=(Process&& other) noexcept;
  ~Process();

  pid_t pid() const { return pid_; }
  // The status when the child has ended, nullopt while it runs. Never blocks.
  std::optional<ExitStatus> poll() const;
  // Waits at most `timeout_seconds`; nullopt when the child still runs then.
  std::optional<ExitStatus> wait(double timeout_seconds) const;
  // Sends to the child alone, or to its whole group (also when the leader has ended). No error when none is left.
  void signal(int number) const;
  void signal_group(int number) const;
  // SIGTERM to the group, SIGKILL after `grace_seconds`; returns the final status.
  ExitStatus terminate(double grace_seconds);

  // Parent's ends of the pipes asked for; none otherwise. Close stdin's with reset() to send end of file.
  UniqueFd& stdin_fd() { return stdin_; }
  UniqueFd& stdout_fd() { return stdout_; }
  UniqueFd& stderr_fd() { return stderr_; }

 private:
  Process() = default;
  void end() noexcept;

  pid_t pid_ = -1;
  bool own_group_ = false;
  UniqueFd stdin_, stdout_, stderr_;
};

struct CommandResult {
  ExitStatus status;
  bool timed_out = false;
  std::string output;  // standard output, cut at the cap
  std::string error;   // standard error, cut at the cap
};

// Runs a command to its end with both outputs captured, at most `output_cap` bytes of each (the rest is read and
// dropped). After `timeout_seconds` its group is killed and timed_out is set.
CommandResult run_command(SpawnOptions options, double timeout_seconds, std::size_t output_cap = 16u << 20);

}  // namespace lockstep
