// `lockstep rank REQUEST.json`: one rank, started by the local agent. Hidden; not meant to be typed.
#include <unistd.h>

#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/cli/session.h"
#include "lockstep/cli/verbs.h"

namespace lockstep::cli {
namespace {

// Messages go to the agent's pipe, a JSON object per line; without one (by hand) to standard output.
void write_message(int fd, const nlohmann::json& message) {
  const std::string line = message.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  for (std::size_t done = 0; done < line.size();) {
    const ssize_t wrote = write(fd, line.data() + done, line.size() - done);
    if (wrote <= 0) return;  // the agent is gone, and we go with it
    done += static_cast<std::size_t>(wrote);
  }
}

}  // namespace

void add_rank(CLI::App& app, Outcome& outcome) {
  CLI::App* verb = app.add_subcommand("rank", "")->group("");
  auto path = std::make_shared<std::string>();
  verb->add_option("request", *path)->required();
  verb->callback([path, &outcome] {
    const auto environment = elastic::detect_rank_environment();
    if (!environment) throw bad_input("`lockstep rank` is started by `lockstep train`", "use `lockstep train`");
    const char* fd = std::getenv("LOCKSTEP_MESSAGE_FD");
    const int out = fd == nullptr ? STDOUT_FILENO : std::atoi(fd);
    try {
      elastic::RankRequest request = elastic::rank_request_from_json(nlohmann::json::parse(read_file(*path)));
      request.ranks = *environment;
      request.ranks.source = "agent";  // which serves the rendezvous store
      outcome.exit_code = run_rank_here(request, [out](const nlohmann::json& message) { write_message(out, message); });
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

}  // namespace lockstep::cli
