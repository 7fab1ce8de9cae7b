#include "lockstep/engine/checkpoint_cadence.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "lockstep/base/units.h"

namespace lockstep::engine {
namespace {

constexpr double kRecentStep = 0.2;  // weight of the newest step

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

void add_to(std::vector<double>& window, double value) {
  window.push_back(value);
  if (window.size() > CheckpointCadence::kWindow) window.erase(window.begin());
}

std::vector<double> seconds_in(const nlohmann::json& memory, const char* key) {
  std::vector<double> found;
  const auto list = memory.find(key);
  if (list == memory.end() || !list->is_array()) return found;
  for (const nlohmann::json& value : *list) {
    if (value.is_number() && value.get<double>() >= 0) add_to(found, value.get<double>());
  }
  return found;
}

}  // namespace

CheckpointCadence::CheckpointCadence(const spec::CheckpointPolicy& policy, planner::CadenceQuestion assumed,
                                     const std::optional<plan::CheckpointCadence>& planned)
    : policy_(policy), automatic_(policy.every_seconds == spec::CheckpointPolicy::kAuto), assumed_(assumed) {
  assumed_.max_lost_seconds = policy_.max_lost_seconds;
  failures_per_second_ = assumed_.failures_per_second;
  if (planned && planned->worst_lost_seconds <= policy_.max_lost_seconds) {
    assumed_.stall_seconds = planned->stall_seconds;
    assumed_.write_seconds =
        std::max(0.0, planned->worst_lost_seconds - planned->interval_seconds - planned->stall_seconds);
    now_ = *planned;
  } else {
    now_ = planner::choose_cadence(assumed_);
  }
  // How long a write takes is anybody's guess where the specs lack storage: until one was measured, half of the bound.
  if (assumed.write_seconds < 0 && assumed.write_bytes_per_second <= 0) {
    now_.interval_seconds = std::min(now_.interval_seconds, policy_.max_lost_seconds / 2);
    now_.worst_lost_seconds = 2 * now_.interval_seconds;
  }
}

// Looked at before a step, and acted on after it: the save begins where the boundary of a step is nearest.
bool CheckpointCadence::is_due(double age_seconds) const {
  if (!automatic_) return policy_.every_seconds > 0 && age_seconds >= policy_.every_seconds;
  return age_seconds + 1.5 * step_seconds_ >= now_.interval_seconds;
}

void CheckpointCadence::stepped(double seconds) {
  step_seconds_ = step_seconds_ > 0 ? (1 - kRecentStep) * step_seconds_ + kRecentStep * seconds : seconds;
}

bool CheckpointCadence::saved(double stall_seconds, double durable_seconds, const Endured& endured) {
  add_to(stalls_, stall_seconds);
  add_to(durables_, durable_seconds);
  count(endured);
  return choose();
}

// What a save costs is not known before one was measured: the specs may lack storage, and its cost then looks like
// none.
bool CheckpointCadence::begins(const Endured& endured) {
  count(endured);
  return !stalls_.empty() && choose();
}

void CheckpointCadence::count(const Endured& endured) {
  endured_ = endured;
  failures_per_second_ =
      planner::expected_failure_rate(assumed_.failures_per_second, endured.failures, endured.seconds);
}

bool CheckpointCadence::choose() {
  if (!automatic_) return false;
  planner::CadenceQuestion question = assumed_;
  question.stall_seconds = median(stalls_);
  question.write_seconds =
      std::max(0.0, *std::max_element(durables_.begin(), durables_.end()) - question.stall_seconds);
  question.step_seconds = step_seconds_;
  question.failures_per_second = failures_per_second_;
  question.max_lost_seconds = std::max(0.0, policy_.max_lost_seconds - step_seconds_);  // it may begin a step late
  plan::CheckpointCadence wanted = planner::choose_cadence(question);
  wanted.worst_lost_seconds += step_seconds_;
  const double durable = wanted.worst_lost_seconds - wanted.interval_seconds;
  const double before = std::exchange(now_, wanted).interval_seconds;
  // What was chosen before stays where it is about as good and keeps both bounds.
  const bool overlaps = before < wanted.stall_seconds + question.write_seconds;
  const bool too_long = before + durable > policy_.max_lost_seconds && before > wanted.interval_seconds;
  if (planner::is_other_cadence(before, wanted.interval_seconds) || overlaps || too_long) return true;
  now_.interval_seconds = before;
  now_.worst_lost_seconds = before + durable;
  return false;
}

std::string CheckpointCadence::describe() const {
  const double mean = failures_per_second_ > 0 ? 1 / failures_per_second_ : 0;
  const std::string failures =
      mean > 0 ? fmt::format("a failure every {} is expected ({} so far)", format_seconds(mean), endured_.failures)
               : "no failures are expected";
  const std::string cost =
      stalls_.empty()
          ? " to begin with"
          : fmt::format(": a save stalls training for {} and is durable after {}", format_seconds(now_.stall_seconds),
                        format_seconds(now_.worst_lost_seconds - now_.interval_seconds - step_seconds_));
  return fmt::format(
      "every {}{}, {}; a failure costs at most {} of work{}", format_seconds(now_.interval_seconds), cost, failures,
      format_seconds(now_.worst_lost_seconds),
      keeps_bound() ? "" : fmt::format(", storage is too slow for {}", format_seconds(policy_.max_lost_seconds)));
}

nlohmann::json CheckpointCadence::figures() const {
  return {{"interval_seconds", now_.interval_seconds},
          {"stall_seconds", now_.stall_seconds},
          {"durable_seconds", now_.worst_lost_seconds - now_.interval_seconds - step_seconds_},
          {"worst_lost_seconds", now_.worst_lost_seconds},
          {"failures", endured_.failures},
          {"failures_per_second", failures_per_second_}};
}

nlohmann::json CheckpointCadence::memory() const {
  return {{"interval_seconds", now_.interval_seconds}, {"stall_seconds", stalls_}, {"durable_seconds", durables_}};
}

void CheckpointCadence::remember(const nlohmann::json& memory) {
  if (!automatic_ || !memory.is_object()) return;
  stalls_ = seconds_in(memory, "stall_seconds");
  durables_ = seconds_in(memory, "durable_seconds");
  if (durables_.size() != stalls_.size()) stalls_ = durables_ = {};
  const auto interval = memory.find("interval_seconds");
  if (!stalls_.empty() && interval != memory.end() && interval->is_number() && interval->get<double>() > 0) {
    const double more = interval->get<double>() - now_.interval_seconds;
    now_.interval_seconds += more;
    now_.worst_lost_seconds += more;
  }
}

}  // namespace lockstep::engine
