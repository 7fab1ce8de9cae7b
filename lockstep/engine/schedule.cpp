#include "lockstep/engine/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "lockstep/base/error.h"

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
  }
  throw InternalError("unknown schedule");
}

}  // namespace lockstep::engine
