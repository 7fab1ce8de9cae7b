#include "lockstep/engine/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/base/error.h"
#include "lockstep/plugin/library.h"

namespace lockstep::engine {

double learning_rate_at(const spec::Optimizer& options, std::int64_t step, std::int64_t total_steps) {
  LOCKSTEP_ASSERT(step >= 0, "steps count from 0");
  if (options.warmup_steps < 0) throw bad_input("optimizer.warmup_steps is negative", "use 0 for no warm-up");
  const double high = options.learning_rate;
  const double low = options.min_learning_rate;
  if (low > high) {
    throw bad_input("optimizer.min_learning_rate is above learning_rate", "lower it, or leave it out");
  }
  const std::int64_t warmup = options.warmup_steps;
  if (step < warmup) return high * static_cast<double>(step + 1) / static_cast<double>(warmup);
  const double span = static_cast<double>(std::max<std::int64_t>(1, total_steps - warmup));
  const double progress = std::min(1.0, static_cast<double>(step - warmup) / span);
  switch (options.schedule) {
    case spec::ScheduleKind::kConstant:
      return high;
    case spec::ScheduleKind::kLinear:
      return low + (high - low) * (1.0 - progress);
    case spec::ScheduleKind::kCosine:
      return low + (high - low) * 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
    case spec::ScheduleKind::kPlugin:
      break;
  }
  throw InternalError("unknown schedule");
}

LearningRate::LearningRate(const spec::Optimizer& options) : options_(options) {
  if (options.schedule != spec::ScheduleKind::kPlugin) return;
  own_ = plugin::make_schedule(options.own_schedule, "optimizer.schedule_options");
}

double LearningRate::at(std::int64_t step, std::int64_t total_steps) const {
  if (!own_) return learning_rate_at(options_, step, total_steps);
  if (step < options_.warmup_steps) {
    spec::Optimizer rising = options_;
    rising.schedule = spec::ScheduleKind::kConstant;
    return learning_rate_at(rising, step, total_steps);
  }
  const plugin::Progress progress{.step = step,
                                  .total_steps = total_steps,
                                  .warmup_steps = options_.warmup_steps,
                                  .learning_rate = options_.learning_rate,
                                  .min_learning_rate = options_.min_learning_rate};
  const std::string title = plugin::title_of(options_.own_schedule, spec::PluginKind::kSchedule);
  const double rate = plugin::calling(title, "rate", [&] { return own_->rate(progress); });
  if (std::isfinite(rate) && rate >= 0) return rate;
  throw UserError(ExitCode::kRunFailed, fmt::format("{}: the rate of step {} is {}", title, step, rate),
                  "a learning rate is 0 or more");
}

}  // namespace lockstep::engine
