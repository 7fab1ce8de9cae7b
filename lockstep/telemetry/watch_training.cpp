#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/telemetry/alerts.h"
#include "lockstep/telemetry/condition.h"
#include "lockstep/telemetry/robust.h"

namespace lockstep::telemetry {
namespace {

using spec::AlertRule;

constexpr std::size_t kUsual = 64, kEnough = 16;
constexpr double kNormDeviations = 8.0;
constexpr double kLeastRise = 0.02;    // of the loss, as a share and as it is
constexpr double kUpperSpreads = 4.0;  // losses of small batches have a longer tail above
constexpr std::size_t kAcceptSteps = 500;
constexpr const char* kCalmer = "health.spike=rollback, or a lower optimizer.learning_rate";

class Training : public AlertWatch {
 public:
  explicit Training(const AlertContext& context)
      : context_(context), bad_numbers_(context.loss_scaled ? 5 : 1, context.loss_scaled ? 5 : 1, 10) {}

  void look(const StepSample& sample, std::vector<Alert>& alerts) override {
    look_at_numbers(sample, alerts);
    if (sample.loss && std::isfinite(*sample.loss)) look_at_loss(*sample.loss, alerts);
    if (sample.gradient_norm && *sample.gradient_norm > 0.0 && std::isfinite(*sample.gradient_norm)) {
      look_at_norm(*sample.gradient_norm, alerts);
    }
  }

 private:
  void look_at_numbers(const StepSample& sample, std::vector<Alert>& alerts) {
    const bool bad_loss = sample.loss && !std::isfinite(*sample.loss);
    const bool bad_norm = sample.gradient_norm && !std::isfinite(*sample.gradient_norm);
    const ConditionChange change = bad_numbers_.look(bad_loss || bad_norm || sample.skipped);
    if (change == ConditionChange::kNone) return;
    const bool fires = change == ConditionChange::kFires;
    alerts.push_back({.rule = AlertRule::kNonfinite,
                      .firing = fires,
                      .value = sample.loss.value_or(0.0),
                      .message = !fires     ? "losses and gradients are numbers again"
                                 : bad_loss ? fmt::format("the loss of step {} is {}", sample.step, *sample.loss)
                                            : fmt::format("the gradient of step {} is not finite", sample.step),
                      .fix = "lockstep train JOB.yaml --resume health.nonfinite=rollback"});
  }

  void look_at_loss(double loss, std::vector<Alert>& alerts) {
    const double usual = losses_.empty() ? 0.0 : losses_.median();
    const double least = std::max({kLeastRise * std::abs(usual), kLeastRise, kUpperSpreads * losses_.upper_spread()});
    const bool high = losses_.is_above(loss, context_.settings.loss_spike, least, kEnough);
    // Losses that are high are not usual, or a spike would soon be; a level that stays is.
    if (!high) losses_.push(loss);
    high_steps_ = spike_.is_firing() ? high_steps_ + 1 : 0;
    ConditionChange change = spike_.look(high);
    const bool stays = high_steps_ >= kAcceptSteps;
    if (stays) {
      spike_.reset();
      losses_.clear();
      change = ConditionChange::kIsOver;
    }
    if (change == ConditionChange::kNone) return;
    const bool fires = change == ConditionChange::kFires;
    const double deviation = losses_.deviation();
    alerts.push_back({.rule = AlertRule::kLossSpike,
                      .firing = fires,
                      .value = deviation > 0 ? (loss - usual) / deviation : 0.0,
                      .limit = context_.settings.loss_spike,
                      .usual = usual,
                      .message = fires   ? fmt::format("the loss rose to {:.4g}, {:.4g} was usual", loss, usual)
                                 : stays ? fmt::format("the loss stayed at {:.4g}: that is usual from now on", loss)
                                         : fmt::format("the loss is {:.4g}, as usual again", loss),
                      .fix = std::string("lockstep train JOB.yaml --resume ") + kCalmer});
  }

  void look_at_norm(double norm, std::vector<Alert>& alerts) {
    const double usual = norms_.empty() ? 0.0 : norms_.median();
    const double factor = context_.settings.gradient_outlier;
    const bool high = norms_.is_above(norm, kNormDeviations, (factor - 1.0) * usual, kEnough);
    norms_.push(norm);  // a new level becomes usual
    const ConditionChange change = outliers_.look(high);
    if (change == ConditionChange::kNone) return;
    const bool fires = change == ConditionChange::kFires;
    alerts.push_back({.rule = AlertRule::kGradientOutlier,
                      .firing = fires,
                      .value = usual > 0 ? norm / usual : 0.0,
                      .limit = factor,
                      .usual = usual,
                      .message = fires ? fmt::format("four of ten gradients are outliers: a norm of {:.4g}, {:.4g} is "
                                                     "usual",
                                                     norm, usual)
                                       : fmt::format("norms of gradients are as usual: {:.4g}", norm),
                      .fix = "lockstep train JOB.yaml --resume optimizer.clip_norm=1"});
  }

  const AlertContext context_;
  Condition bad_numbers_, spike_{3, 5, 10}, outliers_{4, 10, 20};
  RecentValues losses_{kUsual}, norms_{kUsual};
  std::size_t high_steps_ = 0;
};

}  // namespace

std::unique_ptr<AlertWatch> watch_training(const AlertContext& context) { return std::make_unique<Training>(context); }

}  // namespace lockstep::telemetry
