// What a leader does about ranks that do not get on.
#include <fmt/format.h>

#include <utility>

#include "lockstep/elastic/control.h"
#include "lockstep/elastic/leader.h"

namespace lockstep::elastic {
namespace {

// Ranks are asked where they are when an exchange has used so much of its time.
constexpr double kLongShare = 0.75, kLongSeconds = 2.0;
constexpr double kStacksSeconds = 2.0;  // for other nodes to answer

}  // namespace

// An exchange that is about to run out of time: after that the ranks are not where they were.
void Leader::watch_operations(double now) {
  if (stacks_generation_ == recovery_.generation() || is_foreign() || given_up_) return;
  for (const auto& [rank, worker] : workers_by_rank_) {
    const Seen& seen = seen_[worker];
    if (seen.beat.is_null() || seen.generation != recovery_.generation()) continue;
    for (const PendingOperation& operation : pending_operations(seen.beat)) {
      const double age = operation.seconds + now - seen.beaten;
      if (age > kLongSeconds && age > kLongShare * operation.timeout_seconds) return ask_for_stacks();
    }
  }
}

void Leader::ask_for_stacks() {
  stacks_generation_ = recovery_.generation();
  std::map<int, std::vector<int>> by_node;
  for (const auto& [rank, worker] : workers_by_rank_) {
    seen_[worker].stacks.clear();
    if (!seen_[worker].over) by_node[recovery_.node_of(worker)].push_back(worker);
  }
  for (const auto& [node, workers] : by_node) order_(node, {{"do", "stacks"}, {"workers", workers}});
}

void Leader::notice_hang(const std::string& why, double now) {
  if (is_foreign() || hang_generation_ == recovery_.generation()) return;
  hang_generation_ = recovery_.generation();
  if (stacks_generation_ != recovery_.generation()) ask_for_stacks();
  hang_ = Hang{why, now, 0};
  for (const auto& [rank, worker] : workers_by_rank_) {
    if (!seen_[worker].over && seen_[worker].stacks.empty()) ++hang_->stacks_missing;
  }
  states_of_hang_ = rank_states(now);
  tell_hang(now);
}

std::vector<std::pair<int, RankState>> Leader::rank_states(double now) const {
  std::vector<std::pair<int, RankState>> states;
  for (const auto& [rank, worker] : workers_by_rank_) {
    const Seen& seen = seen_.at(worker);
    RankState state{.rank = rank, .stacks = seen.stacks};
    if (meeting_.name) state.host = meeting_.name(recovery_.node_of(worker));
    if (seen.end.error) state.fault = seen.end.error->value("message", "");
    if (!seen.beat.is_null() && seen.generation == recovery_.generation()) {
      state.step = seen.beat.value("step", std::int64_t{-1});
      state.silent_seconds = now - seen.beaten;
      state.phase = seen.beat.value("phase", "");
      state.phase_seconds = seen.beat.value("phase_seconds", 0.0) + state.silent_seconds;
      state.operations = pending_operations(seen.beat);
      for (PendingOperation& operation : state.operations) operation.seconds += state.silent_seconds;
    }
    states.emplace_back(worker, std::move(state));
  }
  return states;
}

void Leader::tell_hang(double now) {
  if (!hang_ || (hang_->stacks_missing > 0 && now - hang_->since < kStacksSeconds && !given_up_)) return;
  std::vector<RankState> ranks;
  for (auto& [worker, state] : std::exchange(states_of_hang_, {})) {
    state.stacks = seen_[worker].stacks;
    ranks.push_back(std::move(state));
  }
  const HangReport report = describe_hang(std::exchange(hang_, std::nullopt)->why, ranks);
  if (!callbacks_.on_message) return;
  callbacks_.on_message(-1, {{"type", command::kHang},
                             {"text", report.text},
                             {"line", report.line},
                             {"step", recovery_.furthest_step()},
                             {"data", report.data}});
}

}  // namespace lockstep::elastic
