#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <limits>

#include "lockstep/base/units.h"
#include "lockstep/telemetry/alerts.h"
#include "lockstep/telemetry/condition.h"

namespace lockstep::telemetry {
namespace {

using spec::AlertRule;

constexpr std::size_t kBlock = 32;        // steps of which the least memory counts
constexpr std::size_t kWarmUpBlocks = 2;  // caches and pools fill
constexpr std::size_t kRising = 8;        // blocks in a row that a creep takes
constexpr std::size_t kFlat = 4;          // blocks after which it is over
constexpr std::size_t kOtherWork = 3;     // steps with other work until that is the work
constexpr double kLeastGrowth = 8.0 * 1024 * 1024;

// What is left when a step frees all that it took grows only where something is kept.
class MemoryCreep : public AlertWatch {
 public:
  explicit MemoryCreep(const AlertContext& context) : context_(context) {}

  void look(const StepSample& sample, std::vector<Alert>& alerts) override {
    if (!sample.memory_bytes) return;
    if (!does_usual_work(sample.items)) return;
    floor_ = std::min(floor_, *sample.memory_bytes);
    if (++in_block_ < kBlock) return;
    in_block_ = 0;
    const double floor = std::exchange(floor_, kNone);
    if (++blocks_ <= kWarmUpBlocks) return;
    flat_ = !floors_.empty() && floor > floors_.back() ? 0 : flat_ + 1;
    if (flat_ > 0) floors_.clear();
    floors_.push_back(floor);
    if (floors_.size() > kRising) floors_.pop_front();
    judge(floor, sample, alerts);
  }

 private:
  // The last step of an epoch may be smaller; where the work is another one from now on, so is the memory.
  bool does_usual_work(double items) {
    if (items_ == 0.0) items_ = items;
    other_ = items != items_ ? other_ + 1 : 0;
    if (other_ < kOtherWork) return other_ == 0;
    items_ = items;
    other_ = blocks_ = in_block_ = 0;
    floors_.clear();
    floor_ = kNone;
    return true;
  }

  void judge(double floor, const StepSample& sample, std::vector<Alert>& alerts) {
    const double first = floors_.front(), growth = floor - first;
    const double share = first > 0 ? growth / first : 0.0;
    if (!firing_ && floors_.size() == kRising && growth > kLeastGrowth && share > context_.settings.memory_creep) {
      firing_ = true;
      const double per_step = growth / static_cast<double>(kBlock * (kRising - 1));
      std::string when;
      if (sample.memory_capacity_bytes > floor) {
        const double steps = (sample.memory_capacity_bytes - floor) / per_step;
        when = fmt::format(", full in {:.0f} steps ({})", steps, format_seconds(steps * sample.seconds));
      }
      alerts.push_back({.rule = AlertRule::kMemoryCreep,
                        .value = share,
                        .limit = context_.settings.memory_creep,
                        .usual = first,
                        .message = fmt::format("memory grew from {} to {} in {} steps{}", format_bytes(first),
                                               format_bytes(floor), kBlock * kRising, when),
                        .fix = "lockstep diagnose " + context_.run});
    } else if (firing_ && flat_ >= kFlat) {
      firing_ = false;
      alerts.push_back({.rule = AlertRule::kMemoryCreep,
                        .firing = false,
                        .message = fmt::format("memory stays at {}", format_bytes(floor))});
    }
  }

  static constexpr double kNone = std::numeric_limits<double>::infinity();
  const AlertContext context_;
  std::deque<double> floors_;  // of blocks, each above the one before
  double floor_ = kNone, items_ = 0.0;
  std::size_t in_block_ = 0, blocks_ = 0, flat_ = 0, other_ = 0;
  bool firing_ = false;
};

class CheckpointOverdue : public AlertWatch {
 public:
  explicit CheckpointOverdue(const AlertContext& context) : context_(context) {}

  void look(const StepSample& sample, std::vector<Alert>& alerts) override {
    if (!sample.checkpoint_age_seconds || !(sample.checkpoint_bound_seconds > 0.0)) return;
    const double age = *sample.checkpoint_age_seconds;
    const double bound = context_.settings.checkpoint_overdue * sample.checkpoint_bound_seconds;
    const ConditionChange change = condition_.look(age > bound);
    if (change == ConditionChange::kNone) return;
    const bool fires = change == ConditionChange::kFires;
    alerts.push_back(
        {.rule = AlertRule::kCheckpointOverdue,
         .firing = fires,
         .value = age,
         .limit = bound,
         .lost_seconds = fires ? age : 0.0,
         .message = fires ? fmt::format("the newest checkpoint is {} old, a failure may lose {} at most",
                                        format_seconds(age), format_seconds(bound))
                          : fmt::format("a checkpoint is there again, {} old", format_seconds(age)),
         .fix = fmt::format("lockstep report {} (is the disk slow or full?); checkpoint.every shorter, or a larger "
                            "checkpoint.max_lost",
                            context_.run)});
  }

 private:
  const AlertContext context_;
  Condition condition_{1, 1, 1};
};

}  // namespace

std::unique_ptr<AlertWatch> watch_memory(const AlertContext& context) { return std::make_unique<MemoryCreep>(context); }
std::unique_ptr<AlertWatch> watch_checkpoints(const AlertContext& context) {
  return std::make_unique<CheckpointOverdue>(context);
}

}  // namespace lockstep::telemetry
