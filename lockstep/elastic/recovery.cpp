#include "lockstep/elastic/recovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep::elastic {

namespace {

// Workers of different nodes have different numbers, whoever numbers them.
constexpr int kWorkersPerNode = 1'000'000;
constexpr double kLongestPause = 30.0;
constexpr double kStandbyPauseSeconds = 10.0;  // for the first step after a failure

}  // namespace

Recovery::Recovery(const RecoveryLimits& limits, double now) : limits_(limits), progress_(now) {}

Recovery::Recovery(const RecoveryLimits& limits, const Past& past, const std::string& why, double now)
    : Recovery(limits, now) {
  generation_ = past.generation;
  nodes_ = past.nodes;
  furthest_step_ = step_at_failure_ = past.furthest_step;
  restarts_ = past.restarts;
  recovery_seconds_ = past.recovery_seconds;
  why_ = why;
  forming_ = generation_ == 0;
  break_generation(why, now);
  at_one_step_ = std::min(at_one_step_, 1);
}

void Recovery::adopt(int worker, int node, int rank, int generation, Doing doing, double now) {
  if (generation > generation_) {  // it formed after the last word of who decided then
    generation_ = generation;
    if (!broken_) break_generation(why_, now);
  }
  Worker& added = workers_[worker];
  added.node = node;
  added.rank = doing == Doing::kStarting ? -1 : rank;
  added.slot = added.rank < 0 ? -1 : rank % limits_.ranks_per_node;
  int& started = started_on_[node];
  started = std::max(started, worker % kWorkersPerNode + 1);
  set(added,
      doing == Doing::kStarting  ? State::kStarting
      : doing == Doing::kWaiting ? State::kWaiting
                                 : State::kMember,
      now);
  broken_ = broken_ || doing == Doing::kMember;
}

void Recovery::node_joined(int node, double /*now*/) { live_.insert(node); }

void Recovery::node_lost(int node, const std::string& why, double now) {
  if (live_.erase(node) == 0) return;
  bool held = std::find(nodes_.begin(), nodes_.end(), node) != nodes_.end(), working = false;
  for (auto& [number, worker] : workers_) {
    if (worker.node != node || worker.state == State::kGone) continue;
    working = working || worker.state == State::kMember;
    set(worker, State::kGone, now);
  }
  held = held || working;
  if (held && !forming_ && (!finishing_ || (limits_.whole && working))) break_generation(why, now);
}

bool Recovery::can_go_on_without(int node) const {
  if (finishing_ || over_ || !replacing_) return false;
  const bool holds_ranks = std::find(nodes_.begin(), nodes_.end(), node) != nodes_.end();
  if (holds_ranks && generation_ > 0 && restarts_ >= limits_.restarts) return false;
  const auto left = static_cast<int>(live_.size() - live_.count(node));
  return std::any_of(limits_.node_counts.begin(), limits_.node_counts.end(), [&](int count) { return count <= left; });
}

Recovery::Worker* Recovery::find(int worker) {
  const auto found = workers_.find(worker);
  return found == workers_.end() || found->second.state == State::kGone ? nullptr : &found->second;
}

void Recovery::set(Worker& worker, State state, double now) {
  worker.state = state;
  worker.since = worker.heard = now;
}

int Recovery::rank_of(int worker) const {
  const auto found = workers_.find(worker);
  return found == workers_.end() ? -1 : found->second.rank;
}

int Recovery::node_of(int worker) const { return worker / kWorkersPerNode; }

int Recovery::count(State state) const {
  return static_cast<int>(
      std::count_if(workers_.begin(), workers_.end(), [&](const auto& entry) { return entry.second.state == state; }));
}

void Recovery::heard(int worker, double now) {
  if (Worker* const found = find(worker)) found->heard = now;
}

void Recovery::ready(int worker, double now) {
  Worker* const found = find(worker);
  if (found == nullptr || found->state != State::kStarting) return;
  set(*found, State::kWaiting, now);
  failed_starts_ = 0;
}

void Recovery::stepped(int worker, std::int64_t step, double now) {
  const Worker* const found = find(worker);
  if (found == nullptr || found->state != State::kMember || step <= step_) return;
  step_ = step;
  furthest_step_ = std::max(furthest_step_, step);
  progress_ = now;
  if (!failed_) return;
  recovery_seconds_.push_back(now - *failed_);
  failed_.reset();
}

void Recovery::progressed(int worker, double now) {
  const Worker* const found = find(worker);
  if (found != nullptr && found->state == State::kMember) progress_ = now;
}

void Recovery::break_generation(const std::string& why, double now, bool failure) {
  if (broken_ || generation_ == 0) return;
  broken_ = forming_ = true;
  why_ = why;
  failure_ = failure;
  if (!failure) return;
  if (limits_.whole) finishing_ = false;  // those that were done do it again, with the others
  if (!failed_) failed_ = now;
  const bool got_on = furthest_step_ > step_at_failure_ || now - formed_ > limits_.proven_seconds;
  at_one_step_ = got_on ? 1 : at_one_step_ + 1;
  step_at_failure_ = furthest_step_;
  if (at_one_step_ > 1) not_before_ = now + std::min(kLongestPause, 0.25 * std::pow(2.0, at_one_step_ - 2));
}

void Recovery::left(int worker, int generation, const std::string& why, double now) {
  Worker* const found = find(worker);
  if (found == nullptr || generation != generation_) return;
  if (found->state != State::kMember && found->state != State::kLeaving) return;
  set(*found, State::kWaiting, now);
  break_generation(why, now);
}

void Recovery::ended(int worker, bool finished, bool recoverable, const std::string& why, double now) {
  Worker* const found = find(worker);
  if (found == nullptr) return;
  const State before = found->state;
  set(*found, State::kGone, now);
  if (finished) {
    finishing_ = finishing_ || !(limits_.whole && broken_);
    return;
  }
  if (!recoverable) over_ = true;
  if (before == State::kStarting) {
    failed_starts_ += 1;
    if (forming_) why_ = why;
  }
  const bool member = before == State::kMember || before == State::kLeaving || before == State::kKilled;
  if (member && found->slot >= 0) break_generation(why, now);
  if (generation_ == 0 && recoverable) {  // it never got ready: the next one may
    at_one_step_ += 1;
    why_ = why;
  }
}

void Recovery::spawn(int node, std::vector<Action>& actions, double now) {
  const int number = node * kWorkersPerNode + started_on_[node]++;
  Worker& worker = workers_[number];
  worker.node = node;
  set(worker, State::kStarting, now);
  actions.push_back({.kind = Action::Kind::kSpawn, .worker = number, .node = node});
}

// A process that says nothing hangs, whatever it is in. One that was told to leave has less time.
void Recovery::end_the_silent(std::vector<Action>& actions, double now) {
  for (auto& [number, worker] : workers_) {
    std::string reason;
    if (worker.state == State::kStarting && now - worker.since > limits_.start_seconds) {
      reason = fmt::format("was not ready after {:.0f} s", limits_.start_seconds);
    } else if (worker.state == State::kLeaving && now - worker.since > limits_.leave_seconds) {
      reason = fmt::format("did not leave a broken group of ranks in {:.0f} s", limits_.leave_seconds);
    } else if (worker.state == State::kMember && now - worker.heard > limits_.silence_seconds) {
      reason = fmt::format("gave no sign of life for {:.0f} s", limits_.silence_seconds);
    }
    if (reason.empty()) continue;
    const bool hangs = worker.state == State::kMember;
    if (hangs) break_generation(reason, now);
    set(worker, State::kKilled, now);
    actions.push_back({.kind = Action::Kind::kKill,
                       .worker = number,
                       .node = worker.node,
                       .rank = worker.rank,
                       .generation = generation_,
                       .reason = reason,
                       .hangs = hangs});
  }
}

// Members of a broken generation are told; what they were ranks of, they stay.
void Recovery::clear_broken(std::vector<Action>& actions, double now) {
  if (!broken_) return;
  for (auto& [number, worker] : workers_) {
    if (worker.state != State::kMember) continue;
    set(worker, State::kLeaving, now);
    actions.push_back({.kind = Action::Kind::kAbort,
                       .worker = number,
                       .node = worker.node,
                       .rank = worker.rank,
                       .generation = generation_,
                       .reason = why_});
  }
  broken_ = count(State::kLeaving) + count(State::kKilled) > 0;
}

// The largest number of nodes that the run can have with those that live; 0: none.
int Recovery::possible_nodes() const {
  for (const int count : limits_.node_counts) {
    if (count <= static_cast<int>(live_.size())) return count;
  }
  return 0;
}

// "": the layout says it all.
std::string Recovery::why_not_fewer() const {
  const auto found = limits_.too_few.find(static_cast<int>(live_.size()));
  return found == limits_.too_few.end() ? "" : ": " + found->second;
}

// Which nodes hold the next generation's ranks; false while it is worth waiting for more of them.
bool Recovery::choose_nodes(std::vector<Action>& actions, double now) {
  const int wanted = limits_.node_counts.front(), possible = possible_nodes();
  const int before = generation_ == 0 || nodes_.empty() ? wanted : static_cast<int>(nodes_.size());
  if (possible >= before) {
    short_since_.reset();
  } else {
    if (!short_since_ && possible == 0 && generation_ > 0) {
      actions.push_back({.kind = Action::Kind::kTell,
                         .reason = fmt::format("{} of {} nodes are there and the run waits up to {:.0f} s for another, "
                                               "since its layout does not do with so few{}",
                                               live_.size(), wanted, limits_.gather_seconds, why_not_fewer())});
    }
    if (!short_since_) short_since_ = now;
    if (possible == 0 || now - *short_since_ < (generation_ == 0 ? limits_.gather_seconds : limits_.wait_seconds)) {
      return false;
    }
  }
  resize(possible);
  return true;
}

// Nodes that hold ranks already keep them where the number stays; new ones take what is vacant.
void Recovery::resize(int count) {
  for (int& node : nodes_) {
    if (!live_.contains(node)) node = -1;
  }
  if (static_cast<int>(nodes_.size()) != count) std::erase(nodes_, -1);
  nodes_.resize(static_cast<std::size_t>(count), -1);
  for (int& vacant : nodes_) {
    if (vacant >= 0) continue;
    vacant = *std::find_if(live_.begin(), live_.end(),
                           [&](int node) { return std::find(nodes_.begin(), nodes_.end(), node) == nodes_.end(); });
  }
  for (auto& [number, worker] : workers_) {
    if (std::find(nodes_.begin(), nodes_.end(), worker.node) == nodes_.end()) worker.slot = -1;
  }
}

// Whoever waits on the node takes a place at once, so that what is missing is started while survivors still leave.
// Returns whether every rank of the node waits to join.
bool Recovery::fill(int node, std::vector<Action>& actions, double now) {
  std::vector<int> missing;
  bool complete = true;
  for (int slot = 0; slot < limits_.ranks_per_node; ++slot) {
    const auto holder = std::find_if(workers_.begin(), workers_.end(), [&](const auto& entry) {
      return entry.second.node == node && entry.second.slot == slot && entry.second.is_there();
    });
    if (holder == workers_.end()) missing.push_back(slot);
    if (holder != workers_.end()) complete = complete && holder->second.state == State::kWaiting;
  }
  for (auto& [number, worker] : workers_) {
    if (missing.empty()) break;
    if (worker.node != node || worker.state != State::kWaiting || worker.slot >= 0) continue;
    worker.slot = missing.front();
    missing.erase(missing.begin());
  }
  for (int more = static_cast<int>(missing.size()) - spares_on(node, State::kStarting); more > 0; --more) {
    spawn(node, actions, now);
  }
  return complete && missing.empty();
}

void Recovery::form(std::vector<Action>& actions, double now) {
  if (!forming_ || !choose_nodes(actions, now)) return;
  bool complete = true;
  for (const int node : nodes_) complete = fill(node, actions, now) && complete;
  if (!complete || broken_ || now < not_before_) return;
  if (generation_ > 0 && failure_) restarts_ += 1;
  generation_ += 1;
  forming_ = failure_ = false;
  short_since_.reset();
  progress_ = formed_ = now;
  step_ = -1;
  for (std::size_t block = 0; block < nodes_.size(); ++block) {
    for (auto& [number, worker] : workers_) {
      if (worker.node != nodes_[block] || worker.state != State::kWaiting || worker.slot < 0) continue;
      worker.rank = static_cast<int>(block) * limits_.ranks_per_node + worker.slot;
      set(worker, State::kMember, now);
      actions.push_back({.kind = Action::Kind::kJoin,
                         .worker = number,
                         .node = worker.node,
                         .rank = worker.rank,
                         .generation = generation_,
                         .world = world(),
                         .reason = why_});
    }
  }
}

int Recovery::spares_on(int node, State state) const {
  return static_cast<int>(std::count_if(workers_.begin(), workers_.end(), [&](const auto& entry) {
    return entry.second.node == node && entry.second.state == state && entry.second.slot < 0;
  }));
}

// A node without ranks keeps as many ready as it would have.
void Recovery::keep_standby(std::vector<Action>& actions, double now) {
  // Processes that end before they are ready are not started for ever; the run can do without.
  if (forming_ || finishing_ || limits_.standby == 0 || failed_starts_ > limits_.restarts_at_one_step) return;
  for (const int node : live_) {
    const bool holds_ranks = std::find(nodes_.begin(), nodes_.end(), node) != nodes_.end();
    // Ranks that just formed need the cores more: their first step is what everybody waits for.
    if (holds_ranks && failed_ && now - progress_ < kStandbyPauseSeconds) continue;
    const int wanted = holds_ranks ? limits_.standby : std::max(limits_.standby, limits_.ranks_per_node);
    for (int more = wanted - spares_on(node, State::kStarting) - spares_on(node, State::kWaiting); more > 0; --more) {
      spawn(node, actions, now);
    }
  }
}

// Nodes came, and their processes are ready: a larger generation takes the place of this one, at no loss of state.
void Recovery::grow(double now) {
  if (forming_ || finishing_ || !replacing_ || generation_ == 0) return;
  const int more = possible_nodes() - static_cast<int>(nodes_.size());
  int ready = 0;
  for (const int node : live_) {
    if (std::find(nodes_.begin(), nodes_.end(), node) != nodes_.end()) continue;
    ready += limits_.standby == 0 || spares_on(node, State::kWaiting) >= limits_.ranks_per_node ? 1 : 0;
  }
  if (more <= 0 || ready < more) return;
  break_generation(fmt::format("{} {} back, the run grows", more, more == 1 ? "node is" : "nodes are"), now, false);
}

std::optional<Action> Recovery::give_up(double now) {
  const auto because = [](std::string reason) {
    return Action{.kind = Action::Kind::kGiveUp, .reason = std::move(reason)};
  };
  if (over_) return because("");
  const bool waits_for_nodes = possible_nodes() < limits_.node_counts.front();
  if (forming_ && (finishing_ || !replacing_) && (generation_ > 0 || waits_for_nodes)) return because("");
  if (broken_ && failure_ && restarts_ >= limits_.restarts) {
    return because(limits_.restarts == 0
                       ? ""
                       : fmt::format("restarted {} {} already", restarts_, restarts_ == 1 ? "time" : "times"));
  }
  if (at_one_step_ > limits_.restarts_at_one_step) {
    return because(fmt::format("{} failures in a row without a step", at_one_step_));
  }
  if (forming_ && generation_ > 0 && failed_starts_ > limits_.restarts_at_one_step) {
    return because(fmt::format("{} processes in a row ended before they were ready", failed_starts_));
  }
  if (forming_ && short_since_ && possible_nodes() == 0 && now - *short_since_ > limits_.gather_seconds) {
    return because(fmt::format("{} of {} nodes are there, and no layout of the run does with so few{}", live_.size(),
                               limits_.node_counts.front(), why_not_fewer()));
  }
  return std::nullopt;
}

std::vector<Action> Recovery::decide(double now) {
  std::vector<Action> actions;
  end_the_silent(actions, now);
  const double longest =
      step_ < 0 ? std::max(limits_.first_step_seconds, limits_.stall_seconds) : limits_.stall_seconds;
  if (!forming_ && !finishing_ && now - progress_ > longest) {
    const std::string reason = fmt::format("no step was done in {:.0f} s", longest);
    for (const auto& [number, worker] : workers_) {
      if (worker.state != State::kMember) continue;
      actions.push_back({.kind = Action::Kind::kStacks,
                         .worker = number,
                         .node = worker.node,
                         .rank = worker.rank,
                         .reason = reason});
    }
    break_generation(reason, now);
  }
  if (auto end = give_up(now)) {
    over_ = true;
    return {std::move(*end)};
  }
  grow(now);
  clear_broken(actions, now);
  form(actions, now);
  keep_standby(actions, now);
  return actions;
}

}  // namespace lockstep::elastic
