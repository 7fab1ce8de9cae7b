#include "lockstep/elastic/local_agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/process.h"
#include "lockstep/elastic/store.h"

namespace lockstep::elastic {
namespace {

constexpr int kPollMilliseconds = 100;

// One spawned rank and what comes out of it.
struct Rank {
  explicit Rank(Process started) : process(std::move(started)) {}

  Process process;
  UniqueFd messages;
  std::string partial;  // of a message line
  std::ofstream log;
  RankEnd end;
  bool over = false;
};

std::unique_ptr<Rank> start_rank(const AgentOptions& options, int index, const StoreServer& store) {
  int pipe_ends[2];
  if (pipe2(pipe_ends, O_CLOEXEC) != 0) {
    throw environment_error(fmt::format("cannot make a pipe: {}", std::strerror(errno)), "raise `ulimit -n`");
  }
  UniqueFd reader(pipe_ends[0]);
  const UniqueFd writer(pipe_ends[1]);

  SpawnOptions spawn;
  spawn.argv = options.argv;
  spawn.environment = options.environment;
  spawn.environment["LOCKSTEP_RANK"] = spawn.environment["LOCKSTEP_LOCAL_RANK"] = std::to_string(index);
  spawn.environment["LOCKSTEP_WORLD_SIZE"] = spawn.environment["LOCKSTEP_LOCAL_WORLD_SIZE"] =
      std::to_string(options.world);
  spawn.environment["LOCKSTEP_MASTER_ADDR"] = "127.0.0.1";
  spawn.environment["LOCKSTEP_MASTER_PORT"] = std::to_string(store.port());
  spawn.environment["LOCKSTEP_MESSAGE_FD"] = std::to_string(writer.get());
  spawn.inherited_fds = {writer.get()};
  spawn.standard_output = spawn.standard_error = StreamMode::kPipe;

  auto rank = std::make_unique<Rank>(Process::spawn(spawn));
  rank->messages = std::move(reader);
  rank->end.rank = index;
  rank->log.open(options.log_folder / fmt::format("rank-{:05d}.log", index), std::ios::app);
  return rank;
}

class Agent {
 public:
  Agent(const AgentOptions& options, const AgentCallbacks& callbacks) : options_(options), callbacks_(callbacks) {
    for (int index = 0; index < options.world; ++index) {
      ranks_.push_back(start_rank(options, index, store_));
      if (callbacks_.on_start) callbacks_.on_start(index, ranks_.back()->process.pid());
    }
  }

  AgentResult run() {
    while (running() > 0) {
      drain(kPollMilliseconds);
      reap();
      obey_stop_requests();
      end_the_rest_after_a_failure();
    }
    drain(0);
    std::vector<RankEnd> ends;
    bool interrupted = false;
    for (const auto& rank : ranks_) {
      ends.push_back(rank->end);
      interrupted = interrupted || rank->end.exit_code == 130;
    }
    const std::optional<RootCause> cause = find_root_cause(ends);
    if (stops_obeyed_ >= 2) return {130, std::nullopt};
    if (cause) return {cause->exit_code, cause};
    return {interrupted ? 130 : 0, std::nullopt};
  }

 private:
  int running() const {
    int count = 0;
    for (const auto& rank : ranks_) count += rank->over ? 0 : 1;
    return count;
  }

  // Reads whatever the ranks wrote, at most one buffer per pipe and call.
  void drain(int timeout_milliseconds) {
    std::vector<pollfd> polled;
    std::vector<std::pair<Rank*, UniqueFd*>> owners;
    for (const auto& rank : ranks_) {
      for (UniqueFd* fd : {&rank->messages, &rank->process.stdout_fd(), &rank->process.stderr_fd()}) {
        if (!*fd) continue;
        polled.push_back({fd->get(), POLLIN, 0});
        owners.emplace_back(rank.get(), fd);
      }
    }
    if (poll(polled.data(), polled.size(), timeout_milliseconds) <= 0) return;
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      auto [rank, fd] = owners[i];
      char buffer[65536];
      const ssize_t got = read(fd->get(), buffer, sizeof(buffer));
      if (got <= 0) {
        fd->reset();
      } else if (fd == &rank->messages) {
        take_messages(*rank, std::string_view(buffer, static_cast<std::size_t>(got)));
      } else {
        rank->log.write(buffer, got).flush();
      }
    }
  }

  void take_messages(Rank& rank, std::string_view bytes) {
    rank.partial.append(bytes);
    for (std::size_t end; (end = rank.partial.find('\n')) != std::string::npos; rank.partial.erase(0, end + 1)) {
      const nlohmann::json message = nlohmann::json::parse(rank.partial.substr(0, end), nullptr, false);
      if (!message.is_object()) continue;
      if (message.value("type", "") == "error" && !rank.end.error) rank.end.error = message;
      if (callbacks_.on_message) callbacks_.on_message(rank.end.rank, message);
    }
  }

  void reap() {
    for (const auto& rank : ranks_) {
      if (rank->over) continue;
      const std::optional<ExitStatus> status = rank->process.poll();
      if (!status) continue;
      rank->over = true;
      rank->end.exit_code = status->code;
      rank->end.signal = status->signal;
      if (stops_obeyed_ > 0 && status->signal == SIGINT) {  // it had no handler yet: stopped as asked all the same
        rank->end.exit_code = 130;
        rank->end.signal = 0;
        continue;
      }
      drain(0);  // its last words
      const bool fine = status->ok() || (status->signal == 0 && status->code == 130);
      if (!fine && !first_failure_) first_failure_ = monotonic_seconds();
    }
  }

  void obey_stop_requests() {
    const int asked = callbacks_.stop_requests ? callbacks_.stop_requests() : 0;
    if (asked >= 1 && stops_obeyed_ == 0) {
      stops_obeyed_ = 1;
      stop_asked_ = monotonic_seconds();
      for (const auto& rank : ranks_) rank->process.signal(SIGINT);
    }
    const bool too_slow = stop_asked_ && monotonic_seconds() - *stop_asked_ > options_.stop_seconds;
    if ((asked >= 2 || too_slow) && stops_obeyed_ == 1) {
      stops_obeyed_ = 2;
      kill_all(0.0);
    }
  }

  void end_the_rest_after_a_failure() {
    if (!first_failure_ || monotonic_seconds() - *first_failure_ < options_.grace_seconds) return;
    kill_all(1.0);
  }

  void kill_all(double grace_seconds) {
    for (const auto& rank : ranks_) {
      if (rank->over) continue;
      rank->end.ended_by_agent = true;
      rank->process.signal_group(SIGCONT);  // a stopped process cannot end by itself
      rank->process.signal_group(SIGTERM);
    }
    const Deadline deadline = Deadline::after(grace_seconds);
    for (const auto& rank : ranks_) {
      if (!rank->over) rank->process.terminate(deadline.remaining());
    }
  }

  const AgentOptions& options_;
  const AgentCallbacks& callbacks_;
  StoreServer store_;
  std::vector<std::unique_ptr<Rank>> ranks_;
  std::optional<double> first_failure_;
  std::optional<double> stop_asked_;
  int stops_obeyed_ = 0;
};

}  // namespace

AgentResult run_local_ranks(const AgentOptions& options, const AgentCallbacks& callbacks) {
  std::filesystem::create_directories(options.log_folder);
  return Agent(options, callbacks).run();
}

}  // namespace lockstep::elastic
