// `lockstep rank REQUEST.json`: one rank, started by the local agent. `lockstep probe REQUEST.json ANSWER.jsonl`: looks
// at a model before it is planned for (script_facts.h). Hidden; not meant to be typed.
#include <poll.h>
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/stacks.h"
#include "lockstep/cli/script_facts.h"
#include "lockstep/cli/session.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/elastic/control.h"

namespace lockstep::cli {
namespace {

// Messages go to the agent's socket, a JSON object per line; without one (by hand) to standard output.
void write_message(int fd, const nlohmann::json& message) {
  const std::string line = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t wrote = write(fd, line.data() + done, line.size() - done);
    if (wrote <= 0) return;  // the agent is gone, and we go with it
    done += static_cast<std::size_t>(wrote);
  }
}

// Lines that the agent writes.
class Commands {
 public:
  explicit Commands(int fd) : fd_(fd) {}

  // Nothing when none came in time; `end` when the agent is gone.
  std::optional<std::string> next(int timeout_ms) {
    const Deadline deadline = Deadline::after(timeout_ms / 1e3);
    while (true) {
      if (const std::size_t end = partial_.find('\n'); end != std::string::npos) {
        std::string line = partial_.substr(0, end);
        partial_.erase(0, end + 1);
        return line;
      }
      pollfd polled{fd_, POLLIN, 0};
      if (poll(&polled, 1, deadline.remaining_milliseconds()) <= 0) {
        if (deadline.expired()) return std::nullopt;
        continue;
      }
      char buffer[4096];
      const ssize_t got = read(fd_, buffer, sizeof(buffer));
      if (got <= 0) return nlohmann::json{{"type", elastic::command::kEnd}}.dump();
      partial_.append(buffer, static_cast<std::size_t>(got));
    }
  }

 private:
  const int fd_;
  std::string partial_;
};

// A process that takes commands learns its rank by one; until then it counts as the first.
std::optional<std::string> lookup_without_rank(const std::string& name) {
  if (name == "LOCKSTEP_RANK" || name == "LOCKSTEP_LOCAL_RANK") return "0";
  return elastic::process_environment()(name);
}

}  // namespace

void add_rank(CLI::App& app, Outcome& outcome) {
  CLI::App* verb = app.add_subcommand("rank", "")->group("");
  auto path = std::make_shared<std::string>();
  verb->add_option("request", *path)->required();
  verb->callback([path, &outcome] {
    write_stacks_when_asked();
    const char* fd = std::getenv("LOCKSTEP_MESSAGE_FD");
    const int out = fd == nullptr ? STDOUT_FILENO : std::atoi(fd);
    const bool commanded = fd != nullptr && std::getenv("LOCKSTEP_RANK") == nullptr;
    const auto environment =
        commanded ? elastic::detect_rank_environment(lookup_without_rank) : elastic::detect_rank_environment();
    if (!environment) throw bad_input("`lockstep rank` is started by `lockstep train`", "use `lockstep train`");
    try {
      elastic::RankRequest request = elastic::rank_request_from_json(nlohmann::json::parse(read_file(*path)));
      request.ranks = *environment;
      request.ranks.source = "agent";  // which serves the rendezvous store
      Commands commands(out);
      std::function<std::optional<std::string>(int)> next;
      if (commanded) next = [&](int timeout_ms) { return commands.next(timeout_ms); };
      outcome.exit_code = run_rank_here(
          request, [out](const nlohmann::json& message) { write_message(out, message); }, next);
      // To the agent a rank that stopped is a rank that stopped; the result says why.
      if (outcome.exit_code == static_cast<int>(ExitCode::kRetry)) {
        outcome.exit_code = static_cast<int>(ExitCode::kInterrupted);
      }
    } catch (const UserError& error) {  // before the engine could speak for itself
      outcome.exit_code = static_cast<int>(error.code());
      write_message(out, {{"type", "error"},
                          {"rank", environment->rank},
                          {"kind", "user"},
                          {"exit_code", outcome.exit_code},
                          {"message", error.what()}});
    }
  });
}

void add_probe(CLI::App& app, Outcome& outcome) {
  CLI::App* verb = app.add_subcommand("probe", "")->group("");
  auto files = std::make_shared<std::pair<std::string, std::string>>();
  verb->add_option("request", files->first)->required();
  verb->add_option("answer", files->second)->required();
  verb->callback([files, &outcome] { outcome.exit_code = run_probe_here(files->first, files->second); });
}

}  // namespace lockstep::cli
