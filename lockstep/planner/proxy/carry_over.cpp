#include "lockstep/planner/proxy/carry_over.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "lockstep/base/error.h"
#include "lockstep/cost/step_time.h"

namespace lockstep::planner {
namespace {

constexpr StepPhase kAll[] = {StepPhase::kData,      StepPhase::kCompute,    StepPhase::kComm,
                              StepPhase::kOptimizer, StepPhase::kCheckpoint, StepPhase::kHost};

double mean_of(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

double root_mean_square(const std::vector<double>& values) {
  double squares = 0;
  for (const double value : values) squares += value * value;
  return values.empty() ? 0 : std::sqrt(squares / static_cast<double>(values.size()));
}

// Logarithms of measured over predicted seconds, of the proxies that have the phase. What took next to nothing counts
// as the smallest phase: nearer to 0 a ratio means nothing.
std::vector<double> errors_of(StepPhase phase, const std::vector<CheckedStep>& checked) {
  std::vector<double> errors;
  for (const CheckedStep& step : checked) {
    const double least = kSmallestPhase * step.predicted.total();
    if (step.predicted[phase] < least) continue;
    errors.push_back(std::log(std::max(step.measured[phase], least) / step.predicted[phase]));
  }
  return errors;
}

// Of a further value: Student's t for their number.
double scatter_half_width(const std::vector<double>& ratios) {
  if (ratios.size() < 2) return std::abs(mean_of(ratios));
  const double n = static_cast<double>(ratios.size()), mean = mean_of(ratios);
  double squares = 0;
  for (const double ratio : ratios) squares += (ratio - mean) * (ratio - mean);
  return cost::student_t_95(ratios.size() - 1) * std::sqrt(squares / (n - 1) * (1 + 1 / n));
}

// Half-widths of the logarithm grow as independent errors do.
plan::Interval widened(const plan::Interval& before, double factor, double by) {
  const double expected = before.expected * factor;
  const double down = std::hypot(std::log(before.expected / before.low), by);
  const double up = std::hypot(std::log(before.high / before.expected), by);
  return {expected * std::exp(-down), expected, expected * std::exp(up)};
}

}  // namespace

double StepParts::total() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

StepParts parts_of(const plan::TimeBreakdown& time) {
  StepParts parts;
  parts[StepPhase::kCompute] = time.compute;
  parts[StepPhase::kComm] = time.tp_comm + time.dp_comm + time.pp_comm + time.cp_comm + time.ep_comm + time.bubble;
  parts[StepPhase::kOptimizer] = time.optimizer;
  parts[StepPhase::kHost] = time.other + time.selection;
  return parts;
}

StepParts scaled_to(StepParts parts, double seconds) {
  const double total = parts.total();
  if (total <= 0) return parts;
  for (double& part : parts.seconds) part *= seconds / total;
  return parts;
}

double CheckedStep::log_ratio() const { return std::log(measured.total() / predicted.total()); }

CarriedOver carry_over(const plan::Interval& before, const StepParts& parts, const std::vector<CheckedStep>& checked,
                       bool same_device) {
  CarriedOver carried;
  double moved = 0, weighted = 0;
  const double total = parts.total();
  for (const StepPhase phase : kAll) {
    PhaseError row{.phase = phase, .seconds = parts[phase], .share = parts[phase] / total};
    const std::vector<double> errors = errors_of(phase, checked);
    row.checks = static_cast<std::int64_t>(errors.size());
    if (!errors.empty()) row.log_error = root_mean_square(errors);
    if (!errors.empty() && same_device) row.factor = std::exp(mean_of(errors));
    weighted += row.share * row.log_error.value_or(0);
    moved += row.share * row.factor;
    carried.phases.push_back(row);
  }
  std::vector<double> ratios;
  ratios.reserve(checked.size());
  for (const CheckedStep& step : checked) ratios.push_back(step.log_ratio());
  carried.widened_by =
      same_device ? scatter_half_width(ratios) : cost::kNinetyPercent * std::max(root_mean_square(ratios), weighted);
  carried.step_seconds = widened(before, moved, carried.widened_by);
  return carried;
}

std::size_t middle_run(const std::vector<double>& log_ratios) {
  LOCKSTEP_ASSERT(!log_ratios.empty(), "a proxy that ran has runs");
  std::vector<std::size_t> order(log_ratios.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return log_ratios[a] < log_ratios[b]; });
  const std::size_t high = order[order.size() / 2], low = order[(order.size() - 1) / 2];
  return std::abs(log_ratios[high]) > std::abs(log_ratios[low]) ? high : low;
}

}  // namespace lockstep::planner
