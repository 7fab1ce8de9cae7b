// Workers: the processes of one node that are ranks or wait to be. Starts them, carries messages, sees them end.
//
// A process gets LOCKSTEP_WORLD_SIZE, LOCKSTEP_LOCAL_WORLD_SIZE, LOCKSTEP_TOKEN and LOCKSTEP_MESSAGE_FD, a socket on
// which it writes one JSON object per line (elastic/engine_api.h has their meaning) and reads commands
// (elastic/control.h). One that takes no commands also gets its rank, LOCKSTEP_RANK and LOCKSTEP_LOCAL_RANK, and the
// store's address. What it prints goes to `log_folder`/rank-00003.log.
//
// Foreign processes get what the caller of start() says and TORCHELASTIC_ERROR_FILE, into which
// torch.distributed.elastic's @record writes the exception that ended the program. What they print is handed on line by
// line as well. Nothing that they started outlives them.
#pragma once

#include <deque>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/process.h"
#include "lockstep/elastic/output_lines.h"
#include "lockstep/elastic/poller.h"

namespace lockstep::elastic {

// What the processes of a run are, and so how one that fails is replaced.
enum class Processes {
  kFixed,      // take no commands: a failure ends the run
  kCommanded,  // take commands: survivors keep their state and join the next generation
  kForeign,    // anybody's program: a failure ends all of them, and new ones take their places
};

struct PrintedLine {
  int rank = 0, local_rank = 0;
  bool is_error = false;  // on standard error
  std::string text;
};

struct WorkerOptions {
  std::vector<std::string> argv;  // of every process; argv[0] is the executable
  std::map<std::string, std::string> environment;
  std::filesystem::path log_folder;
  Processes processes = Processes::kFixed;
  std::vector<std::string> unset;  // removed from what every process inherits
};

class Workers {
 public:
  using Heard = std::function<void(int worker, const nlohmann::json& message)>;
  using Ended = std::function<void(int worker, const ExitStatus& status)>;
  using Printed = std::function<void(const PrintedLine& line)>;

  // All are called from watch()'s rounds and from reap().
  Workers(WorkerOptions options, Heard heard, Ended ended, Printed printed = {});

  // Of those that are started from now on.
  WorkerOptions& options() { return options_; }
  // Throws UserError when the process cannot be started. Returns its pid.
  int start(int worker);
  // A foreign process: `rank` of `generation`, with these variables.
  struct Place {
    int rank = 0, local_rank = 0, generation = 0;
    std::map<std::string, std::string> environment;
  };
  int start(int worker, const Place& place);
  // What it prints from now on belongs to `rank`.
  void name(int worker, int rank);
  // Why a foreign process ended, in its own words: {message?, stack?, stderr: its last lines}.
  nlohmann::json last_words(int worker) const;
  // A process that reads nothing loses the line; its silence is noticed.
  void tell(int worker, const nlohmann::json& message);
  // Where the threads of these processes are, by worker; also into their logs. Waits a moment for them.
  std::map<int, std::string> write_stacks(const std::vector<int>& workers);
  void kill(int worker);
  void signal(int worker, int number);
  void signal_all(int number);
  void signal_group(int worker, int number);  // with all that it started
  // Ends every process, after SIGTERM and `grace_seconds`. Those that it had to end are not reported.
  void end_all(double grace_seconds);

  void watch(Poller& poller);
  void reap();
  bool any_left() const;
  bool is_left(int worker) const;
  std::vector<int> left() const;

 private:
  struct Worker {
    explicit Worker(Process started) : process(std::move(started)) {}
    Process process;
    UniqueFd messages;
    UniqueFd end;         // readable once the process has ended; none on kernels before 5.3
    std::string partial;  // of a message line
    std::ofstream log;
    bool over = false;
    std::string* also = nullptr;  // what is logged goes there too
    // Of a foreign one.
    Place place;
    std::filesystem::path error_file;
    OutputLines lines[2];  // of standard output and error
    std::deque<std::string> last_lines;
  };
  std::unique_ptr<Worker> spawn(SpawnOptions options) const;
  void read_from(int number, Worker& worker, UniqueFd& fd);
  void drain(int number, Worker& worker);
  void take_messages(int number, Worker& worker, std::string_view bytes);
  void write_log(int number, Worker& worker, std::string_view text);
  void print(Worker& worker, bool is_error, const std::string& line) const;
  void end_output(Worker& worker) const;

  WorkerOptions options_;
  const Heard heard_;
  const Ended ended_;
  const Printed printed_;
  std::map<int, std::unique_ptr<Worker>> workers_;
};

}  // namespace lockstep::elastic
