// `lockstep launch --submission -|env`: a node of a submission that reaches it as one text.
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/process.h"
#include "lockstep/cli/engine_library.h"
#include "lockstep/cli/launch_on.h"
#include "lockstep/cli/signals.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::cli {
namespace {

constexpr double kReadSeconds = 60.0;
constexpr std::size_t kMostBytes = 16u << 20;
constexpr int kLookMilliseconds = 200;

// Up to the end of the line; what follows on standard input are orders.
std::string read_line_of_input() {
  const Deadline deadline = Deadline::after(kReadSeconds);
  std::string line;
  for (char c = 0; line.size() < kMostBytes;) {
    pollfd polled{STDIN_FILENO, POLLIN, 0};
    if (::poll(&polled, 1, deadline.remaining_milliseconds()) <= 0) break;
    if (::read(STDIN_FILENO, &c, 1) != 1) break;
    if (c == '\n') return line;
    line += c;
  }
  throw bad_input("--submission -: standard input ended in the middle of the submission",
                  "this flag is for `lockstep launch --on ...` itself");
}

std::vector<std::string> words_of(const schedulers::NodeStart& start) {
  std::vector<std::string> words = {executable_path().string()};
  std::string job_file;
  if (start.job) {
    const std::filesystem::path folder = telemetry::home_directory() / "submissions";
    make_folders(folder);
    // Nodes may share the folder: each replaces it by the same text.
    replace_file(folder / (start.run + ".yaml"), *start.job);
    job_file = (folder / (start.run + ".yaml")).string();
  }
  for (const std::string& word : start.arguments)
    words.push_back(word == schedulers::kJobPlaceholder ? job_file : word);
  return words;
}

// Runs until the agent has ended, which is told to when the submitter asks for it or is gone.
int watch_over(const SpawnOptions& options) {
  count_stop_signals(SecondSignal::kCounts);
  const Process agent = Process::spawn(options);
  int forwarded = 0;
  bool connected = true;
  while (true) {
    if (const auto status = agent.wait(connected ? 0.0 : 0.2)) return status->signal != 0 ? 1 : status->code;
    for (; forwarded < stop_signals(); ++forwarded) agent.signal(requeue_was_asked() ? SIGUSR1 : SIGINT);
    pollfd polled{STDIN_FILENO, POLLIN, 0};
    if (!connected || ::poll(&polled, 1, kLookMilliseconds) <= 0) continue;
    char buffer[256];
    const ssize_t got = ::read(STDIN_FILENO, buffer, sizeof(buffer));
    if (got <= 0) connected = false;
    agent.signal(got <= 0 ? SIGTERM : SIGINT);
  }
}

}  // namespace

int start_node(const std::string& source) {
  const bool from_input = source == "-";
  const char* const variable = std::getenv("LOCKSTEP_SUBMISSION");
  if (!from_input && (source != "env" || variable == nullptr)) {
    throw bad_input("--submission: neither - nor env with LOCKSTEP_SUBMISSION set",
                    "this flag is for `lockstep launch --on ...` itself");
  }
  const schedulers::NodeStart start = schedulers::node_start_from_json(from_input ? read_line_of_input() : variable);
  SpawnOptions options;
  options.argv = words_of(start);
  options.environment = start.environment;
  options.unset = {"LOCKSTEP_SUBMISSION"};
  options.directory = start.directory;
  if (from_input) return watch_over(options);
  for (const auto& [name, value] : options.environment) ::setenv(name.c_str(), value.c_str(), 1);
  ::unsetenv("LOCKSTEP_SUBMISSION");
  if (!start.directory.empty() && ::chdir(start.directory.c_str()) != 0) {
    throw environment_error("there is no folder " + printable_path(start.directory), "set launch.directory");
  }
  std::vector<char*> words;
  for (std::string& word : options.argv) words.push_back(word.data());
  words.push_back(nullptr);
  ::execv(words.front(), words.data());
  throw environment_error("cannot run " + options.argv.front(), "is it there and executable?");
}

}  // namespace lockstep::cli
