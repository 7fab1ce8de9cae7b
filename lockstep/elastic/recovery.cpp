#include "lockstep/elastic/recovery.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

namespace lockstep::elastic {

Recovery::Recovery(const RecoveryLimits& limits, double now) : limits_(limits), progress_(now) {}

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

void Recovery::break_generation(const std::string& why, double now) {
  if (broken_ || generation_ == 0) return;
  broken_ = forming_ = true;
  why_ = why;
  if (!failed_) failed_ = now;
  at_one_step_ = furthest_step_ > step_at_failure_ ? 1 : at_one_step_ + 1;
  step_at_failure_ = furthest_step_;
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
    finishing_ = true;
    return;
  }
  if (!recoverable) over_ = true;
  if (before == State::kStarting) {
    failed_starts_ += 1;
    if (forming_) why_ = why;
  }
  const bool member = before == State::kMember || before == State::kLeaving || before == State::kKilled;
  if (member && found->rank >= 0) break_generation(why, now);
  if (generation_ == 0 && recoverable) {  // it never got ready: the next one may
    at_one_step_ += 1;
    why_ = why;
  }
}

void Recovery::spawn(std::vector<Action>& actions, double now) {
  const int number = next_worker_++;
  set(workers_[number], State::kStarting, now);
  actions.push_back({.kind = Action::Kind::kSpawn, .worker = number});
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
    if (worker.state == State::kMember) break_generation(reason, now);
    set(worker, State::kKilled, now);
    actions.push_back({Action::Kind::kKill, number, worker.rank, generation_, reason});
  }
}

// Members of a broken generation are told; what they were ranks of, they stay.
void Recovery::clear_broken(std::vector<Action>& actions, double now) {
  if (!broken_) return;
  for (auto& [number, worker] : workers_) {
    if (worker.state != State::kMember) continue;
    set(worker, State::kLeaving, now);
    actions.push_back({Action::Kind::kAbort, number, worker.rank, generation_, why_});
  }
  broken_ = count(State::kLeaving) + count(State::kKilled) > 0;
}

void Recovery::form(std::vector<Action>& actions, double now) {
  if (!forming_) return;
  std::set<int> taken;
  for (auto& [number, worker] : workers_) {
    if (worker.state == State::kWaiting && worker.rank >= 0) taken.insert(worker.rank);
  }
  // Whoever waits takes a place at once, so that what is missing is started while survivors still leave.
  std::vector<int> missing;
  for (int rank = 0; rank < limits_.world; ++rank) {
    const bool held = std::any_of(workers_.begin(), workers_.end(), [&](const auto& entry) {
      const State state = entry.second.state;
      return entry.second.rank == rank && state != State::kGone && state != State::kKilled;
    });
    if (!held) missing.push_back(rank);
  }
  for (auto& [number, worker] : workers_) {
    if (missing.empty()) break;
    if (worker.state != State::kWaiting || worker.rank >= 0) continue;
    worker.rank = missing.front();
    missing.erase(missing.begin());
  }
  for (int more = static_cast<int>(missing.size()) - count(State::kStarting); more > 0; --more) spawn(actions, now);
  if (!missing.empty() || broken_) return;
  for (const auto& [number, worker] : workers_) {
    if (worker.rank >= 0 && worker.state != State::kGone && worker.state != State::kWaiting) return;
  }
  generation_ += 1;
  forming_ = false;
  progress_ = now;
  step_ = -1;
  for (auto& [number, worker] : workers_) {
    if (worker.state != State::kWaiting || worker.rank < 0) continue;
    set(worker, State::kMember, now);
    actions.push_back({Action::Kind::kJoin, number, worker.rank, generation_, why_});
  }
}

void Recovery::keep_standby(std::vector<Action>& actions, double now) {
  // Processes that end before they are ready are not started for ever; the run can do without.
  if (forming_ || finishing_ || failed_starts_ > limits_.restarts_at_one_step) return;
  int spare = count(State::kStarting);
  for (const auto& [number, worker] : workers_) spare += worker.state == State::kWaiting && worker.rank < 0 ? 1 : 0;
  for (; spare < limits_.standby; ++spare) spawn(actions, now);
}

std::vector<Action> Recovery::decide(double now) {
  std::vector<Action> actions;
  if (over_) return {{.kind = Action::Kind::kGiveUp}};
  end_the_silent(actions, now);
  if (!forming_ && !finishing_ && now - progress_ > limits_.stall_seconds) {
    break_generation(fmt::format("no step was done in {:.0f} s", limits_.stall_seconds), now);
  }
  if (forming_ && generation_ > 0 && (finishing_ || !replacing_)) {
    over_ = true;
    return {{.kind = Action::Kind::kGiveUp}};
  }
  if (broken_ && generation_ > limits_.restarts) {
    over_ = true;
    return {{.kind = Action::Kind::kGiveUp,
             .reason = limits_.restarts == 0 ? "" : fmt::format("restarted {} times already", limits_.restarts)}};
  }
  if (at_one_step_ > limits_.restarts_at_one_step) {
    over_ = true;
    return {
        {.kind = Action::Kind::kGiveUp, .reason = fmt::format("{} failures in a row without a step", at_one_step_)}};
  }
  if (forming_ && generation_ > 0 && failed_starts_ > limits_.restarts_at_one_step) {
    over_ = true;
    return {{.kind = Action::Kind::kGiveUp,
             .reason = fmt::format("{} processes in a row ended before they were ready", failed_starts_)}};
  }
  clear_broken(actions, now);
  form(actions, now);
  keep_standby(actions, now);
  return actions;
}

}  // namespace lockstep::elastic
