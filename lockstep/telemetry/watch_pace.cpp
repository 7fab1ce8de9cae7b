#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/base/units.h"
#include "lockstep/telemetry/alerts.h"
#include "lockstep/telemetry/condition.h"
#include "lockstep/telemetry/robust.h"
#include "lockstep/telemetry/shift_detector.h"

namespace lockstep::telemetry {
namespace {

using spec::AlertRule;

constexpr std::size_t kMostDisturbed = 20;  // steps in a row that are not judged
constexpr std::size_t kOtherWork = 3;       // steps with other work until that is the work
constexpr double kSameWork = 0.01;
constexpr std::size_t kClearSteps = 10;
constexpr std::size_t kAcceptSteps = 1000;  // of a new level, until it is the usual one
constexpr std::size_t kBlock = 64;          // steps of a median
constexpr std::size_t kEnoughBlocks = 16, kMostBlocks = 256;
constexpr double kBlockDeviations = 6.0;
constexpr double kBestShare = 0.1;  // of the medians: one lucky block is not what the run can do
constexpr double kNormal = 1.4826;
constexpr std::size_t kLoaderWarmUp = 3;

double percent_of_speed(double before, double now) { return now > before ? 100.0 * (1.0 - before / now) : 0.0; }

class Pace : public AlertWatch {
 public:
  explicit Pace(const AlertContext& context)
      : context_(context), detector_(context.settings.slow_down), medians_(kMostBlocks) {}

  void look(const StepSample& sample, std::vector<Alert>& alerts) override {
    if (!(sample.seconds > 0.0) || !is_judged(sample, alerts)) return;
    detector_.observe(sample.seconds, sample.seconds);
    look_at_shift(alerts);
    block_.push_back(sample.seconds);
    block_seconds_ += sample.seconds;
    if (block_.size() < kBlock || block_seconds_ < context_.settings.hold_seconds) return;
    const double median = median_of(std::exchange(block_, {}));
    block_seconds_ = 0.0;
    look_at_history(median, alerts);
    look_at_prediction(median, sample, alerts);
  }

 private:
  // Times are compared for the same work only, and not where something else went on.
  bool is_judged(const StepSample& sample, std::vector<Alert>& alerts) {
    if (items_ == 0.0) items_ = sample.items;
    const bool other = std::abs(sample.items - items_) > kSameWork * items_;
    other_ = other ? other_ + 1 : 0;
    if (other_ >= kOtherWork) {
      items_ = sample.items;
      other_ = 0;
      begin_again("a step does other work from now on", alerts);
      return true;
    }
    disturbed_ = sample.disturbed ? disturbed_ + 1 : 0;
    return !other && (disturbed_ == 0 || disturbed_ > kMostDisturbed);
  }

  // What was usual is forgotten, and what fires against it is over.
  void begin_again(const std::string& why, std::vector<Alert>& alerts) {
    if (slow_) alerts.push_back(is_over(AlertRule::kSlowDown, why));
    if (dropped_) alerts.push_back(is_over(AlertRule::kMfuDrop, why));
    detector_.accept();
    medians_.clear();
    block_.clear();
    block_seconds_ = 0.0;
    slow_steps_ = clear_steps_ = 0;
    slow_ = dropped_ = false;
  }

  void look_at_shift(std::vector<Alert>& alerts) {
    if (!slow_) {
      if (!detector_.has_risen()) return;
      if (detector_.is_usual_again()) return detector_.rearm();
      if (detector_.seconds_since_rise() < context_.settings.hold_seconds) return;
      slow_ = true;
      slow_steps_ = clear_steps_ = 0;
      return alerts.push_back(slow_down());
    }
    clear_steps_ = detector_.is_usual_again() ? clear_steps_ + 1 : 0;
    if (clear_steps_ >= kClearSteps) {
      alerts.push_back(
          is_over(AlertRule::kSlowDown, fmt::format("a step takes {} again", format_seconds(detector_.recent()))));
      slow_ = false;
      return detector_.rearm();
    }
    if (++slow_steps_ < kAcceptSteps) return;
    begin_again(fmt::format("a step took {} for {} steps: that is usual from now on",
                            format_seconds(detector_.recent()), kAcceptSteps),
                alerts);
  }

  static Alert is_over(AlertRule rule, const std::string& message) {
    return {.rule = rule, .firing = false, .message = message};
  }

  Alert slow_down() const {
    const double before = detector_.usual(), now = detector_.recent();
    return {.rule = AlertRule::kSlowDown,
            .value = detector_.share_above_usual(),
            .limit = context_.settings.slow_down,
            .usual = before,
            .cost_percent = percent_of_speed(before, now),
            .message = fmt::format("a step takes {}, {:.1f}% longer than before ({})", format_seconds(now),
                                   100.0 * detector_.share_above_usual(), format_seconds(before)),
            .fix = "lockstep diagnose " + context_.run};
  }

  // What creeps is never a shift: against the best median of 64 steps, as far as those differ by chance.
  void look_at_history(double median, std::vector<Alert>& alerts) {
    medians_.push(std::log(median));
    if (slow_ || medians_.size() < kEnoughBlocks) return;
    const std::vector<double> all = medians_.values();
    const double best = quantile_of(all, kBestShare);
    const double now = std::min(all[all.size() - 1], all[all.size() - 2]);  // both are as slow at least
    const double noise = kBlockDeviations * kNormal * early_deviation(all);
    const double limit = std::max(-std::log1p(-context_.settings.mfu_drop), noise);
    const bool was = dropped_;
    if (now - best > limit) dropped_ = true;
    if (dropped_ && std::max(all[all.size() - 1], all[all.size() - 2]) - best < limit / 2) dropped_ = false;
    if (was == dropped_) return;
    const double lost = -std::expm1(best - now);
    alerts.push_back(
        {.rule = AlertRule::kMfuDrop,
         .firing = dropped_,
         .value = lost,
         .limit = context_.settings.mfu_drop,
         .usual = std::exp(best),
         .cost_percent = dropped_ ? 100.0 * lost : 0.0,
         .message = dropped_ ? fmt::format("throughput and MFU are {:.1f}% below the best of this run: a "
                                           "step takes {}, it took {}",
                                           100.0 * lost, format_seconds(std::exp(now)), format_seconds(std::exp(best)))
                             : fmt::format("a step takes {} again", format_seconds(median)),
         .fix = "lockstep diagnose " + context_.run});
  }

  // How far neighbouring medians are apart: a creep moves each by little.
  static double early_deviation(const std::vector<double>& medians) {
    std::vector<double> steps;
    for (std::size_t i = 1; i < medians.size(); ++i) steps.push_back(std::abs(medians[i] - medians[i - 1]));
    return median_of(std::move(steps));
  }

  void look_at_prediction(double median, const StepSample& sample, std::vector<Alert>& alerts) {
    if (!(sample.predicted_slowest_seconds > 0.0)) return;
    const double beyond = median / sample.predicted_slowest_seconds - 1.0;
    const ConditionChange change = below_.look(beyond > context_.settings.below_prediction);
    if (change == ConditionChange::kNone) return;
    const bool fires = change == ConditionChange::kFires;
    alerts.push_back({.rule = AlertRule::kBelowPrediction,
                      .firing = fires,
                      .value = beyond,
                      .limit = context_.settings.below_prediction,
                      .usual = sample.predicted_seconds,
                      .cost_percent = fires ? percent_of_speed(sample.predicted_seconds, median) : 0.0,
                      .message = fires ? fmt::format("a step takes {}, the plan expects {} and {} at the slowest",
                                                     format_seconds(median), format_seconds(sample.predicted_seconds),
                                                     format_seconds(sample.predicted_slowest_seconds))
                                       : fmt::format("a step takes {}, as the plan expects", format_seconds(median)),
                      .fix = "lockstep diagnose " + context_.run});
  }

  const AlertContext context_;
  ShiftDetector detector_;
  RecentValues medians_;  // of blocks, logarithms
  std::vector<double> block_;
  double block_seconds_ = 0.0, items_ = 0.0;
  std::size_t other_ = 0, disturbed_ = 0, slow_steps_ = 0, clear_steps_ = 0;
  bool slow_ = false, dropped_ = false;
  Condition below_{2, 2, 2};
};

class LoaderStall : public AlertWatch {
 public:
  explicit LoaderStall(const AlertContext& context)
      : context_(context), condition_(8, 10, 10, context.settings.hold_seconds) {}

  void look(const StepSample& sample, std::vector<Alert>& alerts) override {
    if (!(sample.seconds > 0.0) || ++seen_ <= kLoaderWarmUp) return;
    const double share = sample.data_seconds / sample.seconds;
    shares_.push(share);
    const ConditionChange change = condition_.look(share > context_.settings.loader_stall, sample.seconds);
    if (change == ConditionChange::kNone) return;
    const bool fires = change == ConditionChange::kFires;
    const double usual = shares_.median();
    alerts.push_back({.rule = AlertRule::kLoaderStall,
                      .firing = fires,
                      .value = usual,
                      .limit = context_.settings.loader_stall,
                      .cost_percent = fires ? 100.0 * usual : 0.0,
                      .message = fires ? fmt::format("{:.0f}% of a step waits for data", 100.0 * usual)
                                       : "steps do not wait for data any more",
                      .fix = fmt::format("lockstep train JOB.yaml --resume loader.num_workers={}",
                                         2 * std::max<std::int64_t>(1, context_.loader_workers))});
  }

 private:
  const AlertContext context_;
  Condition condition_;
  RecentValues shares_{10};
  std::size_t seen_ = 0;
};

}  // namespace

std::unique_ptr<AlertWatch> watch_pace(const AlertContext& context) { return std::make_unique<Pace>(context); }
std::unique_ptr<AlertWatch> watch_loader(const AlertContext& context) { return std::make_unique<LoaderStall>(context); }

}  // namespace lockstep::telemetry
