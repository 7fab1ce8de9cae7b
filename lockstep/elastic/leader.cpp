#include "lockstep/elastic/leader.h"

#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <utility>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/elastic/control.h"

namespace lockstep::elastic {
namespace {

constexpr int kInterrupted = static_cast<int>(ExitCode::kInterrupted);
constexpr int kRetry = static_cast<int>(ExitCode::kRetry);

bool is_fine(const RankEnd& end) { return end.signal == 0 && (end.exit_code == 0 || end.exit_code == kInterrupted); }

}  // namespace

Leader::Leader(const AgentOptions& options, const AgentCallbacks& callbacks, Recovery recovery, Meeting meeting,
               Order order)
    : options_(options),
      callbacks_(callbacks),
      recovery_(std::move(recovery)),
      meeting_(std::move(meeting)),
      order_(std::move(order)),
      chaos_(options.chaos) {}

void Leader::note(const std::string& text) const {
  if (callbacks_.on_message) callbacks_.on_message(-1, {{"type", "note"}, {"text", text}});
}

void Leader::node_lost(int node, const std::string& why, double now) {
  for (auto& [worker, seen] : seen_) {
    if (recovery_.node_of(worker) != node || seen.over) continue;
    seen.over = true;
    seen.end.error = {{"kind", "internal"}, {"message", why}, {"exit_code", 1}};
    seen.end.exit_code = 1;
  }
  if (is_foreign() && !first_failure_ && recovery_.generation() > 0) {
    for (const auto& [rank, worker] : workers_by_rank_) {
      if (recovery_.node_of(worker) != node || first_failure_) continue;
      first_failure_ = RootCause{rank, 1, why, ""};
      if (callbacks_.on_failure && !given_up_) callbacks_.on_failure(*first_failure_);
    }
  }
  recovery_.node_lost(node, why, now);
}

bool Leader::can_go_on_without(int node) const {
  return !given_up_ && stops_obeyed_ == 0 && recovery_.can_go_on_without(node);
}

HostOfRank Leader::host_of_ranks() const {
  if (!meeting_.name) return {};
  return [this](int rank) {
    const auto worker = workers_by_rank_.find(rank);
    return worker == workers_by_rank_.end() ? std::string() : meeting_.name(recovery_.node_of(worker->second));
  };
}

void Leader::adopt(int node, const nlohmann::json& worker, double now) {
  const int number = worker.value("worker", -1), rank = worker.value("rank", -1);
  const std::string doing = worker.value("doing", "starting");
  seen_[number].end.rank = rank;
  seen_[number].generation = worker.value("generation", 0);
  pids_[number] = worker.value("pid", 0);
  if (rank >= 0) workers_by_rank_[rank] = number;  // until the next generation
  recovery_.adopt(number, node, rank, seen_[number].generation,
                  doing == "member"    ? Recovery::Doing::kMember
                  : doing == "waiting" ? Recovery::Doing::kWaiting
                                       : Recovery::Doing::kStarting,
                  now);
}

bool Leader::is_over() const {
  int finished = 0, running = 0;
  for (const auto& [worker, seen] : seen_) {
    running += seen.over ? 0 : 1;
    const bool member = recovery_.rank_of(worker) >= 0 && seen.generation == recovery_.generation();
    finished += member && seen.over && is_fine(seen.end) && !seen.end.ended_by_agent ? 1 : 0;
  }
  if (given_up_) return running == 0;
  return recovery_.generation() > 0 && finished == recovery_.world();
}

AgentResult Leader::result() const {
  std::vector<RankEnd> ends;
  bool interrupted = false;
  for (const auto& [worker, seen] : seen_) {
    if (recovery_.rank_of(worker) < 0 || seen.generation != recovery_.generation()) continue;
    ends.push_back(seen.end);
    interrupted = interrupted || seen.end.exit_code == kInterrupted;
  }
  AgentResult result;
  result.restarts = recovery_.restarts();
  result.lost_steps = lost_steps_;
  result.recovery_seconds = recovery_.recovery_seconds();
  result.chaos_left = chaos_;
  const int stopped = requeue_ ? kRetry : kInterrupted;
  if (stops_obeyed_ >= (is_foreign() ? 1 : 2)) {
    result.exit_code = stopped;
    return result;
  }
  if (stops_obeyed_ > 0 && ends.empty()) {  // while nodes were waited for
    result.exit_code = stopped;
    result.began = false;
    return result;
  }
  result.cause = is_foreign() && first_failure_ ? first_failure_ : find_root_cause(ends, host_of_ranks());
  if (result.cause && !give_up_reason_.empty()) result.cause->message += "; " + give_up_reason_;
  result.exit_code = result.cause ? result.cause->exit_code : interrupted ? stopped : 0;
  if (given_up_ && !result.cause && result.exit_code == 0) {  // before they were ranks
    for (const auto& [worker, seen] : seen_) {
      if (!result.cause && seen.end.error) result.cause = find_root_cause({seen.end}, host_of_ranks());
    }
    if (result.cause) result.exit_code = result.cause->exit_code;
  }
  if (given_up_ && !result.cause && result.exit_code == 0) {
    result.cause = RootCause{-1, 1, give_up_reason_.empty() ? "the ranks could not be started" : give_up_reason_};
    result.exit_code = 1;
  }
  return result;
}

bool Leader::decide(double now) {
  wake_the_stopped(now);
  watch_operations(now);
  tell_hang(now);
  if (given_up_) {
    end_the_rest(now);
    return false;
  }
  const std::vector<Action> actions = recovery_.decide(now);
  if (is_foreign()) begin_generation(actions);
  for (const Action& action : actions) carry_out(action, now);
  return !actions.empty();
}

void Leader::carry_out(const Action& action, double now) {
  switch (action.kind) {
    case Action::Kind::kSpawn:
      seen_[action.worker] = {};
      seen_[action.worker].over = is_foreign();  // until it starts
      order_(action.node, {{"do", "spawn"}, {"worker", action.worker}});
      if (options_.processes == Processes::kFixed) recovery_.ready(action.worker, now);
      return;
    case Action::Kind::kJoin:
      return join(action);
    case Action::Kind::kAbort:
      if (is_foreign()) {
        seen_[action.worker].end.ended_by_agent = true;
        return order_(action.node, {{"do", "signal"}, {"number", SIGTERM}, {"worker", action.worker}});
      }
      return tell(action.worker,
                  {{"type", command::kAbort}, {"generation", action.generation}, {"reason", action.reason}});
    case Action::Kind::kStacks:
      return notice_hang(action.reason, now);
    case Action::Kind::kKill: {
      Seen& seen = seen_[action.worker];
      if (seen.over) return;
      if (action.hangs) {
        notice_hang(fmt::format("{} {}", rank_name(action.rank, host_of_ranks()), action.reason), now);
      }
      note(is_foreign() ? fmt::format("{} did not end in {:.0f} s after SIGTERM; it is killed",
                                      rank_name(action.rank, host_of_ranks()), options_.recovery.leave_seconds)
                        : fmt::format("{} {}; it is ended, and its log says where its threads were",
                                      rank_name(action.rank, host_of_ranks()), action.reason));
      seen.end.error = nlohmann::json{{"kind", "timeout"}, {"message", action.reason}, {"exit_code", 1}};
      order_(action.node, {{"do", "kill"}, {"worker", action.worker}});
      return;
    }
    case Action::Kind::kTell:
      return note(action.reason);
    case Action::Kind::kGiveUp:
      given_up_ = now;
      give_up_reason_ = action.reason;
      return;
  }
}

void Leader::join(const Action& action) {
  Seen& seen = seen_[action.worker];
  seen.generation = action.generation;
  seen.end = RankEnd{.rank = action.rank};
  seen.beat = nullptr;
  if (is_foreign()) return start_foreign(action);
  if (callbacks_.on_start) callbacks_.on_start(action.rank, pids_[action.worker]);
  if (std::exchange(told_generation_, action.generation) != action.generation) workers_by_rank_.clear();
  workers_by_rank_[action.rank] = action.worker;
  const int per_node = options_.recovery.ranks_per_node;
  nlohmann::json line = {
      {"type", command::kJoin},       {"generation", action.generation},      {"rank", action.rank},
      {"world", action.world},        {"local_rank", action.rank % per_node}, {"local_world", per_node},
      {"master_host", meeting_.host}, {"master_port", meeting_.port},         {"one_node", meeting_.one_node}};
  line["restarts"] = recovery_.restarts();
  line["running_seconds"] = monotonic_seconds() - meeting_.started;
  std::vector<ChaosEvent> left;
  std::ranges::copy_if(chaos_, std::back_inserter(left), [&](const auto& event) { return event.rank == action.rank; });
  line["chaos"] = to_json(left);
  if (meeting_.towards) line["towards"] = meeting_.towards(action.node);
  tell(action.worker, line, action.rank);
  if (static_cast<int>(workers_by_rank_.size()) == action.world) tell_pids();
}

// Rank 0 of every generation gets a port that is free on its node: a program that opens its store where the last one's
// was would meet what is left of it.
void Leader::begin_generation(const std::vector<Action>& actions) {
  for (const Action& action : actions) {
    if (action.kind != Action::Kind::kJoin || action.rank != 0) continue;
    master_host_ = meeting_.address ? meeting_.address(action.node) : meeting_.host;
    master_port_ = seen_[action.worker].port;
    first_failure_.reset();
    workers_by_rank_.clear();
    told_generation_ = action.generation;
    if (callbacks_.on_generation) callbacks_.on_generation(action.generation, action.world, recovery_.restarts());
  }
}

void Leader::start_foreign(const Action& action) {
  seen_[action.worker].over = false;
  workers_by_rank_[action.rank] = action.worker;
  const int per_node = options_.recovery.ranks_per_node;
  const auto text = [](int number) { return std::to_string(number); };
  const nlohmann::json environment = {{"RANK", text(action.rank)},
                                      {"WORLD_SIZE", text(action.world)},
                                      {"LOCAL_RANK", text(action.rank % per_node)},
                                      {"LOCAL_WORLD_SIZE", text(per_node)},
                                      {"GROUP_RANK", text(action.rank / per_node)},
                                      {"GROUP_WORLD_SIZE", text(action.world / per_node)},
                                      {"ROLE_RANK", text(action.rank)},
                                      {"ROLE_WORLD_SIZE", text(action.world)},
                                      {"MASTER_ADDR", master_host_},
                                      {"MASTER_PORT", text(master_port_)},
                                      {"TORCHELASTIC_RESTART_COUNT", text(recovery_.restarts())},
                                      {"LOCKSTEP_GENERATION", text(action.generation)}};
  order_(action.node, {{"do", "start"},
                       {"worker", action.worker},
                       {"rank", action.rank},
                       {"local_rank", action.rank % per_node},
                       {"generation", action.generation},
                       {"environment", environment}});
}

void Leader::started(int worker, int pid) {
  pids_[worker] = pid;
  if (!is_foreign()) return;
  const int rank = recovery_.rank_of(worker);
  if (callbacks_.on_start) callbacks_.on_start(rank, pid);
  const bool all = std::ranges::all_of(workers_by_rank_, [&](const auto& entry) { return pids_[entry.second] > 0; });
  if (all && static_cast<int>(workers_by_rank_.size()) == recovery_.world()) tell_pids();
}

// Which process is which rank, for people and for tools that look at one.
void Leader::tell_pids() const {
  nlohmann::json all = {
      {"generation", recovery_.generation()}, {"pids", nlohmann::json::array()}, {"nodes", nlohmann::json::array()}};
  for (const auto& [rank, worker] : workers_by_rank_) {
    const auto pid = pids_.find(worker);
    all["pids"].push_back(pid == pids_.end() ? 0 : pid->second);
    all["nodes"].push_back(recovery_.node_of(worker));
  }
  replace_file(meeting_.log_folder / "ranks.json", all.dump() + "\n");
}

void Leader::tell(int worker, const nlohmann::json& line, int rank) {
  nlohmann::json order = {{"do", "tell"}, {"worker", worker}, {"line", line}};
  if (rank >= 0) order["rank"] = rank;
  order_(recovery_.node_of(worker), order);
}

void Leader::take_beat(int worker, const nlohmann::json& message, double now) {
  if (message.value("generation", 0) != recovery_.generation()) return;
  seen_[worker].beaten = now;
  seen_[worker].beat = message;
  const std::size_t before = recovery_.recovery_seconds().size();
  if (const std::int64_t marks = message.value("marks", std::int64_t{0}); seen_[worker].marks != marks) {
    seen_[worker].marks = marks;
    recovery_.progressed(worker, now);
  }
  recovery_.stepped(worker, message.value("step", std::int64_t{-1}), now);
  if (callbacks_.on_beat) callbacks_.on_beat(seen_[worker].end.rank, message);
  if (recovery_.recovery_seconds().size() > before) {
    note(fmt::format("recovered in {:.2f} s", recovery_.recovery_seconds().back()));
  }
}

void Leader::heard_of(int worker, const nlohmann::json& message) {
  if (message.value("type", "") != command::kStacks) return;
  seen_[worker].stacks = message.value("text", "");
  if (hang_ && hang_->stacks_missing > 0) --hang_->stacks_missing;
}

void Leader::heard(int worker, const nlohmann::json& message, double now) {
  const std::string type = message.value("type", "");
  if (type == command::kStacks) return heard_of(worker, message);
  recovery_.heard(worker, now);
  if (type == command::kReady) {
    seen_[worker].port = message.value("port", 0);
    return recovery_.ready(worker, now);
  }
  if (type == command::kHeartbeat) return take_beat(worker, message, now);
  if (type == command::kRecovered) {
    // Where no rank was left that knew how far the run had come, the heartbeats do.
    const std::int64_t told = message.value("lost_steps", std::int64_t{0});
    const std::int64_t behind = recovery_.furthest_step() - message.value("step", std::int64_t{0});
    lost_steps_ += told >= 0 ? told : std::max<std::int64_t>(0, behind);
    return;
  }
  Seen& seen = seen_[worker];
  if (type == command::kLost) {
    seen.end.error = message;
    if (message.value("kind", "") == "timeout") notice_hang(message.value("message", ""), now);
    return recovery_.left(worker, message.value("generation", 0), message.value("message", ""), now);
  }
  if (type == command::kChaos) return take_chaos(worker, message, now);
  if (type == "error" && !seen.end.error) seen.end.error = message;
  if (type == "result" && message.value("exit_code", 0) == kRetry) requeue_ = true;
  if (callbacks_.on_message) callbacks_.on_message(seen.end.rank, message);
}

// A fault happens in this process, or on its word in another.
void Leader::take_chaos(int worker, nlohmann::json message, double now) {
  const auto found = std::ranges::find(chaos_, message.value("event", -1), &ChaosEvent::number);
  if (found == chaos_.end()) return;
  const ChaosEvent event = *found;
  chaos_.erase(found);
  if (event.kind == ChaosKind::kStop) waking_.emplace_back(now + event.seconds, worker);
  if (event.standby) kill_a_standby();
  message["text"] = event.text;
  message["kind"] = to_string(event.kind);
  if (callbacks_.on_message) callbacks_.on_message(event.rank, message);
}

void Leader::kill_a_standby() {
  for (const auto& [worker, seen] : seen_) {
    if (seen.over || recovery_.rank_of(worker) >= 0) continue;
    order_(recovery_.node_of(worker), {{"do", "signal"}, {"number", SIGKILL}, {"worker", worker}});
    return;
  }
  note("chaos: no process waits, so none was killed");
}

void Leader::wake_the_stopped(double now) {
  std::erase_if(waking_, [&](const auto& entry) {
    const auto& [when, worker] = entry;
    if (now < when) return false;
    order_(recovery_.node_of(worker), {{"do", "signal"}, {"number", SIGCONT}, {"worker", worker}});
    return true;
  });
}

// One line of what the program itself said, with its exit code; the rest of it for below.
RootCause Leader::cause_of(const RankEnd& end, const nlohmann::json& words) const {
  constexpr std::size_t kMostText = 300, kMostDetails = 6000;
  const std::string printed = words.value("stderr", ""), stack = words.value("stack", "");
  std::string said = words.value("message", "");
  if (said.empty()) {
    for (const std::string& line : split(printed, '\n')) said = trim(line).empty() ? said : std::string(trim(line));
  }
  RankEnd told = end;
  if (!said.empty() && end.signal == 0) {
    told.error = {{"kind", "internal"},
                  {"message", fmt::format("{} (exit code {})", printable(said, kMostText), end.exit_code)}};
  }
  RootCause cause = find_root_cause({told}, host_of_ranks()).value();
  cause.exit_code = end.signal != 0 ? 128 + end.signal : end.exit_code;
  cause.details = stack.empty() ? printed : stack;
  if (cause.details.size() > kMostDetails) cause.details.erase(0, cause.details.size() - kMostDetails);
  return cause;
}

void Leader::foreign_ended(int worker, const nlohmann::json& words, double now) {
  Seen& seen = seen_[worker];
  const bool stopped = stops_obeyed_ > 0;
  const bool done = stopped || (seen.end.exit_code == 0 && seen.end.signal == 0 && !seen.end.ended_by_agent);
  const bool failed = !done && !seen.end.ended_by_agent;
  if (stopped) seen.end = RankEnd{.rank = seen.end.rank, .exit_code = kInterrupted};
  std::string why;
  if (failed && !first_failure_ && !given_up_) {
    first_failure_ = cause_of(seen.end, words);
    why = first_failure_->message;
    if (callbacks_.on_failure) callbacks_.on_failure(*first_failure_);
  }
  recovery_.ended(worker, done, true, why, now);
}

void Leader::ended(int worker, const ExitStatus& status, const nlohmann::json& words, double now) {
  Seen& seen = seen_[worker];
  seen.over = true;
  seen.end.exit_code = status.code;
  seen.end.signal = status.signal;
  if (is_foreign()) return foreign_ended(worker, words, now);
  if (stops_obeyed_ > 0 && status.signal == SIGINT) {  // it had no handler yet: stopped as asked all the same
    seen.end.exit_code = kInterrupted;
    seen.end.signal = 0;
  }
  const bool user = seen.end.error && seen.end.error->value("kind", "") == "user";
  const std::optional<RootCause> cause = find_root_cause({seen.end}, host_of_ranks());
  const std::string why = cause ? cause->message : "";
  const bool member = recovery_.rank_of(worker) >= 0;
  recovery_.ended(worker, is_fine(seen.end), !user, why, now);
  if (member && cause && !user && options_.processes == Processes::kCommanded && !given_up_) note(why);
}

void Leader::stop(int asked, bool requeue, int signal, double now) {
  if (is_foreign() && given_up_ && stops_obeyed_ == 0) {  // they end already
    if (asked >= 1) end_all(0.0);
    return;
  }
  if (asked >= 1 && stops_obeyed_ == 0) {
    stops_obeyed_ = 1;
    stop_asked_ = now;
    requeue_ = requeue_ || requeue;
    recovery_.stop_replacing();
    order_(-1, {{"do", "signal"}, {"number", is_foreign() ? signal : SIGINT}});
  }
  const bool too_slow = stop_asked_ && now - *stop_asked_ > options_.stop_seconds;
  if ((asked >= 2 || too_slow) && stops_obeyed_ == 1) {
    stops_obeyed_ = 2;
    if (!given_up_) given_up_ = now;
    end_all(0.0);
  }
}

// Without waiting for them: what they print is read while they end.
void Leader::end_the_foreign(double now) {
  if (!std::exchange(terminated_, true)) {
    for (auto& [worker, seen] : seen_) seen.end.ended_by_agent = seen.end.ended_by_agent || !seen.over;
    order_(-1, {{"do", "signal"}, {"number", SIGTERM}});
  }
  if (now - *given_up_ >= options_.recovery.leave_seconds) end_all(0.0);
}

void Leader::end_the_rest(double now) {
  if (is_foreign()) return end_the_foreign(now);
  for (const auto& [worker, seen] : seen_) {
    if (!seen.over && seen.end.error) tell(worker, {{"type", command::kEnd}});  // it has told its part
  }
  if (now - *given_up_ >= options_.grace_seconds) end_all(1.0);
}

void Leader::end_all(double grace_seconds) {
  for (auto& [worker, seen] : seen_) {
    if (seen.over) continue;
    seen.end.ended_by_agent = true;
    seen.over = true;
  }
  order_(-1, {{"do", "end_all"}, {"grace_seconds", grace_seconds}});
}

}  // namespace lockstep::elastic
