#include "lockstep/engine/snapshot_cadence.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/planner/cadence.h"

namespace lockstep::engine {
namespace {

constexpr std::int64_t kFirst = 2;  // every other step, so that steps with and without are seen
constexpr std::size_t kMostSteps = 256;

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

}  // namespace

SnapshotCadence::SnapshotCadence(std::int64_t every)
    : automatic_(every == spec::Snapshots::kAuto), every_(automatic_ ? kFirst : every) {}

bool SnapshotCadence::stepped(double seconds, bool after_snapshot, double stall_seconds, const Agree& agree) {
  if (after_snapshot) {
    with_.push_back(seconds);
    stalls_.push_back(stall_seconds);
  } else if (without_.size() < kMostSteps) {
    without_.push_back(seconds);
  }
  if (!automatic_ || with_.size() < kWindow) return false;
  return decide(agree);
}

// A copy in flight slows the step that it overlaps with: the cost is the difference, at least what was waited and, so
// that the noise of a busy machine is not taken for it, at most what it takes alone.
bool SnapshotCadence::decide(const Agree& agree) {
  const double stall = median(stalls_), with = median(with_), without = median(without_);
  Figures mine = {stall, with - stall};
  if (!without_.empty()) mine = {std::max(stall, std::min(with - without, alone_seconds_)), without};
  const auto [cost, step] = agree(mine);
  with_.clear();
  without_.clear();
  stalls_.clear();
  if (!(step > 0.0)) return false;
  const double wanted = std::ceil(cost / (kShare * step) - 1e-6);
  std::int64_t every = static_cast<std::int64_t>(std::clamp(wanted, 1.0, static_cast<double>(kMost)));
  if (every_ == 1 && every > 1) every = kFirst;  // only the stall was seen: look at both kinds of steps
  const bool first = !std::exchange(decided_, true);
  const bool differs = planner::is_other_cadence(static_cast<double>(every_), static_cast<double>(every));
  if (differs) every_ = every;
  share_ = cost / (step * static_cast<double>(every_));
  return first || differs;
}

}  // namespace lockstep::engine
