#include "lockstep/elastic/local_agent.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/process.h"
#include "lockstep/elastic/control.h"
#include "lockstep/elastic/store.h"

namespace lockstep::elastic {
namespace {

constexpr int kPollMilliseconds = 100;

bool is_fine(const ExitStatus& status) { return status.ok() || (status.signal == 0 && status.code == 130); }

// One spawned process and what comes out of it.
struct Worker {
  explicit Worker(Process started) : process(std::move(started)) {}

  Process process;
  UniqueFd messages;
  std::string partial;  // of a message line
  std::ofstream log;
  RankEnd end;         // of the generation it was in last
  int generation = 0;  // that it was in last
  bool over = false;
};

class Agent {
 public:
  Agent(const AgentOptions& options, const AgentCallbacks& callbacks)
      : options_(options),
        callbacks_(callbacks),
        token_(make_token()),
        store_({.token = token_}),
        chaos_(options.chaos),
        recovery_(limits_of(options), monotonic_seconds()) {
    // What cannot be started at all is the caller's to hear of. Processes that take no commands are ranks at once.
    while (decide() && !options_.commanded) {
    }
  }

  AgentResult run() {
    while (!is_over()) {
      drain(kPollMilliseconds);
      reap();
      wake_the_stopped();
      obey_stop_requests();
      if (given_up_) {
        end_the_rest_after_a_failure();
        continue;
      }
      decide();
    }
    drain(0);
    return result();
  }

 private:
  static RecoveryLimits limits_of(const AgentOptions& options) {
    RecoveryLimits limits = options.recovery;
    limits.world = options.world;
    if (!options.commanded) limits.standby = limits.restarts = 0;
    if (!options.commanded) limits.silence_seconds = limits.stall_seconds = std::numeric_limits<double>::infinity();
    return limits;
  }

  // Every rank has done its work, or nobody is left after a failure.
  bool is_over() const {
    int finished = 0, running = 0;
    for (const auto& [number, worker] : workers_) {
      const bool member = recovery_.rank_of(number) >= 0;
      running += worker->over ? 0 : 1;
      finished += member && worker->over && worker->generation == recovery_.generation() && is_fine(status_of(*worker));
    }
    return given_up_ ? running == 0 : finished == options_.world;
  }

  static ExitStatus status_of(const Worker& worker) { return {worker.end.exit_code, worker.end.signal}; }

  AgentResult result() {
    std::vector<RankEnd> ends;
    bool interrupted = false;
    for (const auto& [number, worker] : workers_) {
      if (recovery_.rank_of(number) < 0 || worker->generation != recovery_.generation()) continue;
      ends.push_back(worker->end);
      interrupted = interrupted || worker->end.exit_code == 130;
    }
    AgentResult result;
    result.restarts = recovery_.restarts();
    result.lost_steps = lost_steps_;
    result.recovery_seconds = recovery_.recovery_seconds();
    result.chaos_left = chaos_;
    if (stops_obeyed_ >= 2) {
      result.exit_code = 130;
      return result;
    }
    result.cause = find_root_cause(ends);
    if (result.cause && !give_up_reason_.empty()) result.cause->message += "; " + give_up_reason_;
    result.exit_code = result.cause ? result.cause->exit_code : interrupted ? 130 : 0;
    if (given_up_ && !result.cause && result.exit_code == 0) {
      result.cause = RootCause{-1, 1, give_up_reason_.empty() ? "the ranks could not be started" : give_up_reason_};
      result.exit_code = 1;
    }
    return result;
  }

  // Whether there was anything to do.
  bool decide() {
    const std::vector<Action> actions = recovery_.decide(monotonic_seconds());
    for (const Action& action : actions) carry_out(action);
    return !actions.empty();
  }

  void carry_out(const Action& action) {
    switch (action.kind) {
      case Action::Kind::kSpawn:
        return start(action.worker);
      case Action::Kind::kJoin:
        return join(action);
      case Action::Kind::kAbort:
        tell(action.worker, {{"type", command::kAbort}, {"generation", action.generation}, {"reason", action.reason}});
        return;
      case Action::Kind::kKill:
        return kill_hung(action);
      case Action::Kind::kGiveUp:
        given_up_ = monotonic_seconds();
        give_up_reason_ = action.reason;
        return;
    }
  }

  void start(int number) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
      throw environment_error(fmt::format("cannot make a socket: {}", std::strerror(errno)), "raise `ulimit -n`");
    }
    UniqueFd mine(ends[0]);
    const UniqueFd theirs(ends[1]);
    SpawnOptions spawn;
    spawn.argv = options_.argv;
    spawn.environment = options_.environment;
    if (!options_.commanded) {
      spawn.environment["LOCKSTEP_RANK"] = spawn.environment["LOCKSTEP_LOCAL_RANK"] = std::to_string(number);
    }
    spawn.environment["LOCKSTEP_WORLD_SIZE"] = spawn.environment["LOCKSTEP_LOCAL_WORLD_SIZE"] =
        std::to_string(options_.world);
    spawn.environment["LOCKSTEP_MASTER_ADDR"] = "127.0.0.1";
    spawn.environment["LOCKSTEP_MASTER_PORT"] = std::to_string(store_.port());
    spawn.environment["LOCKSTEP_TOKEN"] = token_;
    spawn.environment["LOCKSTEP_MESSAGE_FD"] = std::to_string(theirs.get());
    spawn.inherited_fds = {theirs.get()};
    spawn.standard_output = spawn.standard_error = StreamMode::kPipe;
    auto worker = std::make_unique<Worker>(Process::spawn(spawn));
    worker->messages = std::move(mine);
    workers_[number] = std::move(worker);
    if (!options_.commanded) recovery_.ready(number, monotonic_seconds());
  }

  void join(const Action& action) {
    Worker& worker = *workers_.at(action.worker);
    worker.generation = action.generation;
    worker.end = RankEnd{.rank = action.rank};
    worker.log = std::ofstream(options_.log_folder / fmt::format("rank-{:05d}.log", action.rank), std::ios::app);
    if (callbacks_.on_start) callbacks_.on_start(action.rank, worker.process.pid());
    pids_[action.rank] = worker.process.pid();
    if (static_cast<int>(pids_.size()) == options_.world) tell_pids(action.generation);
    if (!options_.commanded) return;
    std::vector<ChaosEvent> left;
    std::ranges::copy_if(chaos_, std::back_inserter(left),
                         [&](const auto& event) { return event.rank == action.rank; });
    tell(action.worker, {{"type", command::kJoin},
                         {"generation", action.generation},
                         {"rank", action.rank},
                         {"world", options_.world},
                         {"local_rank", action.rank},
                         {"local_world", options_.world},
                         {"chaos", to_json(left)}});
  }

  // Which process is which rank, for people and for tools that look at one.
  void tell_pids(int generation) {
    nlohmann::json all = {{"generation", generation}, {"pids", nlohmann::json::array()}};
    for (const auto& [rank, pid] : pids_) all["pids"].push_back(pid);
    write_file_atomically(options_.log_folder / "ranks.json", all.dump() + "\n");
  }

  // A process that reads nothing loses the line; its silence is noticed.
  void tell(int number, const nlohmann::json& message) {
    const std::string line = message.dump() + "\n";
    const Worker& worker = *workers_.at(number);
    if (worker.over || !worker.messages) return;
    (void)!::send(worker.messages.get(), line.data(), line.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  }

  void kill_hung(const Action& action) {
    Worker& worker = *workers_.at(action.worker);
    if (worker.over) return;
    note(fmt::format("rank {} {}; it is ended", action.rank, action.reason));
    worker.end.error = nlohmann::json{{"kind", "timeout"}, {"message", action.reason}, {"exit_code", 1}};
    worker.process.signal_group(SIGKILL);
  }

  void note(const std::string& text) {
    if (callbacks_.on_message) callbacks_.on_message(-1, {{"type", "note"}, {"text", text}});
  }

  // Reads whatever the processes wrote, at most one buffer per pipe and call.
  void drain(int timeout_milliseconds) {
    std::vector<pollfd> polled;
    std::vector<std::tuple<int, Worker*, UniqueFd*>> owners;
    for (const auto& [number, worker] : workers_) {
      for (UniqueFd* fd : {&worker->messages, &worker->process.stdout_fd(), &worker->process.stderr_fd()}) {
        if (!*fd) continue;
        polled.push_back({fd->get(), POLLIN, 0});
        owners.emplace_back(number, worker.get(), fd);
      }
    }
    if (poll(polled.data(), polled.size(), timeout_milliseconds) <= 0) return;
    for (std::size_t i = 0; i < polled.size(); ++i) {
      if (polled[i].revents == 0) continue;
      auto [number, worker, fd] = owners[i];
      char buffer[65536];
      const ssize_t got = read(fd->get(), buffer, sizeof(buffer));
      if (got <= 0) {
        fd->reset();
      } else if (fd == &worker->messages) {
        take_messages(number, *worker, std::string_view(buffer, static_cast<std::size_t>(got)));
      } else {
        write_log(number, *worker, std::string_view(buffer, static_cast<std::size_t>(got)));
      }
    }
  }

  void write_log(int number, Worker& worker, std::string_view text) {
    if (!worker.log.is_open()) {  // it has no rank yet
      worker.log.open(options_.log_folder / fmt::format("standby-{:05d}.log", number), std::ios::app);
    }
    worker.log.write(text.data(), static_cast<std::streamsize>(text.size())).flush();
  }

  void take_messages(int number, Worker& worker, std::string_view bytes) {
    recovery_.heard(number, monotonic_seconds());
    worker.partial.append(bytes);
    for (std::size_t end; (end = worker.partial.find('\n')) != std::string::npos; worker.partial.erase(0, end + 1)) {
      const nlohmann::json message = nlohmann::json::parse(worker.partial.substr(0, end), nullptr, false);
      if (message.is_object()) take(number, worker, message);
    }
  }

  void take(int number, Worker& worker, const nlohmann::json& message) {
    const std::string type = message.value("type", "");
    const double now = monotonic_seconds();
    if (type == command::kReady) return recovery_.ready(number, now);
    if (type == command::kHeartbeat) {
      if (message.value("generation", 0) == recovery_.generation()) {
        const std::size_t before = recovery_.recovery_seconds().size();
        recovery_.stepped(number, message.value("step", std::int64_t{-1}), now);
        if (recovery_.recovery_seconds().size() > before) {
          note(fmt::format("recovered in {:.2f} s", recovery_.recovery_seconds().back()));
        }
      }
      return;
    }
    if (type == command::kRecovered) {
      // Where no rank was left that knew how far the run had come, the heartbeats do.
      const std::int64_t told = message.value("lost_steps", std::int64_t{0});
      const std::int64_t behind = recovery_.furthest_step() - message.value("step", std::int64_t{0});
      lost_steps_ += told >= 0 ? told : std::max<std::int64_t>(0, behind);
      return;
    }
    if (type == command::kLost) {
      worker.end.error = message;
      return recovery_.left(number, message.value("generation", 0), message.value("message", ""), now);
    }
    if (type == command::kChaos) return take_chaos(worker, message);
    if (type == "error" && !worker.end.error) worker.end.error = message;
    if (callbacks_.on_message) callbacks_.on_message(worker.end.rank, message);
  }

  // A fault happens in this process, or on its word in another.
  void take_chaos(Worker& worker, nlohmann::json message) {
    const auto found = std::ranges::find(chaos_, message.value("event", -1), &ChaosEvent::number);
    if (found == chaos_.end()) return;
    const ChaosEvent event = *found;
    chaos_.erase(found);
    if (event.kind == ChaosKind::kStop) waking_.emplace_back(monotonic_seconds() + event.seconds, &worker);
    if (event.standby) kill_a_standby();
    message["text"] = event.text;
    message["kind"] = to_string(event.kind);
    if (callbacks_.on_message) callbacks_.on_message(event.rank, message);
  }

  void kill_a_standby() {
    for (const auto& [number, worker] : workers_) {
      if (worker->over || recovery_.rank_of(number) >= 0) continue;
      worker->process.signal_group(SIGKILL);
      return;
    }
    note("chaos: no process waits, so none was killed");
  }

  void wake_the_stopped() {
    std::erase_if(waking_, [](const auto& entry) {
      const auto& [when, worker] = entry;
      const bool now = monotonic_seconds() >= when;
      if (now && !worker->over) worker->process.signal(SIGCONT);
      return now;
    });
  }

  void reap() {
    for (const auto& [number, worker] : workers_) {
      if (worker->over) continue;
      const std::optional<ExitStatus> status = worker->process.poll();
      if (!status) continue;
      drain(0);  // its last words
      worker->over = true;
      worker->end.exit_code = status->code;
      worker->end.signal = status->signal;
      if (stops_obeyed_ > 0 && status->signal == SIGINT) {  // it had no handler yet: stopped as asked all the same
        worker->end.exit_code = 130;
        worker->end.signal = 0;
      }
      const bool user = worker->end.error && worker->end.error->value("kind", "") == "user";
      const std::optional<RootCause> cause = find_root_cause({worker->end});
      const std::string why = cause ? cause->message : "";
      const bool member = recovery_.rank_of(number) >= 0;
      recovery_.ended(number, is_fine(status_of(*worker)), !user, why, monotonic_seconds());
      if (member && cause && !user && options_.commanded && !given_up_) note(why);
    }
  }

  void obey_stop_requests() {
    const int asked = callbacks_.stop_requests ? callbacks_.stop_requests() : 0;
    if (asked >= 1 && stops_obeyed_ == 0) {
      stops_obeyed_ = 1;
      stop_asked_ = monotonic_seconds();
      recovery_.stop_replacing();
      for (const auto& [number, worker] : workers_) worker->process.signal(SIGINT);
    }
    const bool too_slow = stop_asked_ && monotonic_seconds() - *stop_asked_ > options_.stop_seconds;
    if ((asked >= 2 || too_slow) && stops_obeyed_ == 1) {
      stops_obeyed_ = 2;
      if (!given_up_) given_up_ = monotonic_seconds();
      kill_all(0.0);
    }
  }

  void end_the_rest_after_a_failure() {
    for (const auto& [number, worker] : workers_) {
      if (!worker->over && worker->end.error) tell(number, {{"type", command::kEnd}});  // it has told its part
    }
    if (monotonic_seconds() - *given_up_ < options_.grace_seconds) return;
    kill_all(1.0);
  }

  void kill_all(double grace_seconds) {
    for (const auto& [number, worker] : workers_) {
      if (worker->over) continue;
      worker->end.ended_by_agent = true;
      worker->process.signal_group(SIGCONT);  // a stopped process cannot end by itself
      worker->process.signal_group(SIGTERM);
    }
    const Deadline deadline = Deadline::after(grace_seconds);
    for (const auto& [number, worker] : workers_) {
      if (!worker->over) worker->process.terminate(deadline.remaining());
    }
  }

  const AgentOptions& options_;
  const AgentCallbacks& callbacks_;
  const std::string token_;
  StoreServer store_;
  std::vector<ChaosEvent> chaos_;                   // that is left
  std::vector<std::pair<double, Worker*>> waking_;  // processes that chaos stopped, and until when
  Recovery recovery_;
  std::map<int, std::unique_ptr<Worker>> workers_;
  std::map<int, int> pids_;  // by rank
  std::optional<double> given_up_;
  std::string give_up_reason_;
  std::optional<double> stop_asked_;
  int stops_obeyed_ = 0;
  std::int64_t lost_steps_ = 0;
};

}  // namespace

AgentResult run_local_ranks(const AgentOptions& options, const AgentCallbacks& callbacks) {
  std::filesystem::create_directories(options.log_folder);
  return Agent(options, callbacks).run();
}

}  // namespace lockstep::elastic
