#include "lockstep/telemetry/node_alerts.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/units.h"

namespace lockstep::telemetry {
namespace {

using spec::AlertRule;

constexpr double kDiskSeconds = 3600.0;  // that a trend is drawn from
constexpr double kLeastTrend = 600.0;    // before there is one
constexpr std::size_t kDiskParts = 6;
constexpr std::size_t kMostDiskSamples = 4096;

// Bytes a second that the least free space of each part of the window falls by; 0 unless each is below the one before:
// checkpoints come and go, what is left between them tells.
double falling_rate(const std::deque<std::pair<double, double>>& free) {
  const double begin = free.front().first, length = free.back().first - begin;
  if (length < kLeastTrend) return 0.0;
  std::vector<std::pair<double, double>> least(kDiskParts, {0.0, -1.0});
  for (const auto& [time, bytes] : free) {
    const auto part = std::min(kDiskParts - 1, static_cast<std::size_t>((time - begin) / length * kDiskParts));
    if (least[part].second < 0.0 || bytes < least[part].second) least[part] = {time, bytes};
  }
  for (std::size_t i = 1; i < kDiskParts; ++i) {
    if (least[i].second < 0.0 || least[i - 1].second < 0.0 || least[i].second >= least[i - 1].second) return 0.0;
  }
  return (least.front().second - least.back().second) / std::max(1.0, least.back().first - least.front().first);
}

}  // namespace

std::vector<Alert> NodeAlerts::told(Alert alert) const {
  if (!context_.settings.is_on(alert.rule)) return {};
  if (alert.firing) alert.usd_per_day = usd_per_day(context_, alert.cost_percent);
  if (alert.step < 0) alert.step = last_step_;
  return {std::move(alert)};
}

std::vector<Alert> NodeAlerts::advanced(std::int64_t step, double now) {
  const bool stepped = step > last_step_;
  if (stepped && last_advance_ && last_step_ >= 0 && !silent_) {
    intervals_.push((now - *last_advance_) / static_cast<double>(step - last_step_));
  }
  last_step_ = step;  // a run that recovers goes back
  last_advance_ = now;
  if (!silent_) return {};
  silent_ = false;
  return told({.rule = AlertRule::kHeartbeat, .firing = false, .message = fmt::format("step {} is done", step)});
}

void NodeAlerts::waits(double) { last_advance_.reset(); }

std::vector<Alert> NodeAlerts::tick(double now) {
  if (!last_advance_ || silent_) return {};
  const double usual = intervals_.empty() ? 0.0 : intervals_.median();
  const double limit = std::max(context_.settings.heartbeat_seconds, kUsualSteps * usual);
  const double silent = now - *last_advance_;
  if (silent <= limit) return {};
  silent_ = true;
  return told({.rule = AlertRule::kHeartbeat,
               .value = silent,
               .limit = limit,
               .usual = usual,
               .cost_percent = 100.0,
               .lost_seconds = silent,
               .message = fmt::format("no step for {} after step {}{}", format_seconds(silent), last_step_,
                                      usual > 0 ? ", one takes " + format_seconds(usual) : ""),
               .fix = "lockstep diagnose " + context_.run});
}

std::vector<Alert> NodeAlerts::ranks_were_busy(const std::map<int, double>& seconds_by_rank, double step_seconds,
                                               double seconds_looked_at) {
  if (seconds_by_rank.size() < 2) return {};
  std::vector<double> busy;
  busy.reserve(seconds_by_rank.size());
  for (const auto& [rank, seconds] : seconds_by_rank) busy.push_back(seconds);
  // The lower of the two in the middle: of two ranks the slower one is the straggler.
  std::ranges::sort(busy);
  const double median = busy[(busy.size() - 1) / 2];
  if (!(median > 0.0)) return {};
  std::vector<Alert> alerts;
  for (const auto& [rank, seconds] : seconds_by_rank) {
    Straggler& state =
        ranks_.try_emplace(rank, Straggler{Condition(4, 5, 5, context_.settings.hold_seconds), RecentValues(5)})
            .first->second;
    const double share = seconds / median - 1.0;
    state.shares.push(share);
    const ConditionChange change = state.condition.look(share > context_.settings.straggler, seconds_looked_at);
    if (change == ConditionChange::kNone) continue;
    const bool fires = change == ConditionChange::kFires;
    const double usual_share = state.shares.median();
    const double lost = usual_share * median;  // all wait for it
    const auto one =
        told({.rule = AlertRule::kStraggler,
              .firing = fires,
              .subject = fmt::format("rank {}", rank),
              .rank = rank,
              .value = usual_share,
              .limit = context_.settings.straggler,
              .usual = median,
              .cost_percent = fires && step_seconds > 0 ? std::min(100.0, 100.0 * lost / step_seconds) : 0.0,
              .message = fires ? fmt::format("rank {} is busy {} of a step, {:.0f}% longer than the median rank", rank,
                                             format_seconds(median * (1.0 + usual_share)), 100.0 * usual_share)
                               : fmt::format("rank {} is as fast as the others", rank),
              .fix = "lockstep diagnose " + context_.run});
    alerts.insert(alerts.end(), one.begin(), one.end());
  }
  return alerts;
}

std::vector<Alert> NodeAlerts::disk_is(const std::string& node, double free_bytes, double needed_bytes, double now) {
  Disk& disk = disks_[node];
  disk.free.emplace_back(now, free_bytes);
  while (now - disk.free.front().first > kDiskSeconds || disk.free.size() > kMostDiskSamples) disk.free.pop_front();
  const double rate = falling_rate(disk.free);
  const double left = rate > 0.0 ? free_bytes / rate : -1.0;
  const bool no_room = needed_bytes > 0.0 && free_bytes < kCheckpointsLeft * needed_bytes;
  const bool fills = left >= 0.0 && left < context_.settings.disk_seconds;
  const ConditionChange change = disk.condition.look(no_room || fills);
  if (change == ConditionChange::kNone) return {};
  const bool fires = change == ConditionChange::kFires;
  std::string message = fmt::format("{}: {} are free where checkpoints go", node, format_bytes(free_bytes));
  if (fires && no_room) message += fmt::format(", the next one takes {}", format_bytes(needed_bytes));
  if (fires && fills) message += fmt::format(", full in {}", format_seconds(left));
  return told({.rule = AlertRule::kDiskFilling,
               .firing = fires,
               .subject = node,
               .value = fires && fills ? left : 0.0,
               .limit = context_.settings.disk_seconds,
               .message = message,
               .fix = "free space there, checkpoint.keep smaller, or another checkpoint.directory"});
}

std::vector<Alert> NodeAlerts::node_is(const std::string& node, const std::string& check, const std::string& what,
                                       const std::string& fix) {
  const std::string subject = node + " " + check;
  const auto found = ailing_.find(subject);
  if (what.empty()) {
    if (found == ailing_.end()) return {};
    ailing_.erase(found);
    return told({.rule = AlertRule::kNodeHealth,
                 .firing = false,
                 .subject = subject,
                 .message = fmt::format("{}: {} is well again", node, check)});
  }
  if (found != ailing_.end() && found->second == what) return {};
  ailing_[subject] = what;
  return told({.rule = AlertRule::kNodeHealth,
               .subject = subject,
               .message = fmt::format("{}: {}: {}", node, check, what),
               .fix = fix});
}

}  // namespace lockstep::telemetry
