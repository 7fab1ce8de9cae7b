// From measured steps to the constants of fused_time.h.
#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "lockstep/base/error.h"
#include "lockstep/cost/fused/memory.h"
#include "lockstep/cost/fused/profile.h"
#include "lockstep/cost/least_squares.h"

namespace lockstep::cost {
namespace {

// A step's median is good to about this share, an operation that is all of a step to about that.
constexpr double kStepSigma = 0.01, kOperationSigma = 0.05;
constexpr double kSmallestTimeSigma = 0.02, kSmallestMemorySigma = 0.01;
constexpr std::size_t kFewestPoints = 3;

// The operations of a point that have a formula, with what was measured.
struct Observed {
  FusedRun run;
  double seconds = 0;
  struct Part {
    std::size_t operation;
    double seconds, weight;
  };
  std::vector<Part> parts;
};

Observed observed(const FusedPoint& point, const spec::Device& device) {
  Observed o{point.run(), point.seconds, {}};
  const FusedOperationSeconds expected = fused_operation_seconds(o.run, {}, device);
  for (const auto& [name, seconds] : point.operations) {
    for (std::size_t i = 0; i < static_cast<std::size_t>(FusedOperation::kCount); ++i) {
      // Not expected: the step took another way there, fused or not, than its sizes say.
      if (name != to_string(static_cast<FusedOperation>(i)) || seconds <= 0 || expected[i] <= 0) continue;
      o.parts.push_back({i, seconds, std::sqrt(seconds / point.seconds) / kOperationSigma});
    }
  }
  return o;
}

FusedConstants with(const std::vector<double>& logarithms) {
  FusedConstants constants;
  std::size_t i = 0;
  for (const FusedConstantInfo& info : fused_constant_table()) constants.*info.member = std::exp(logarithms[i++]);
  return constants;
}

FusedConstants fit(const std::vector<Observed>& points, const spec::Device& device) {
  std::vector<double> start;
  for (const FusedConstantInfo& info : fused_constant_table()) {
    start.push_back(std::log(FusedConstants{}.*info.member));
  }
  const auto residuals = [&](const std::vector<double>& x) {
    const FusedConstants constants = with(x);
    std::vector<double> rows;
    for (const Observed& point : points) {
      const FusedOperationSeconds operations = fused_operation_seconds(point.run, constants, device);
      // The step that was timed call by call ran at clocks of its own: operations say what relates to what.
      double sum = 0, weights = 0;
      for (const auto& part : point.parts) {
        sum += part.weight * part.weight * std::log(part.seconds / operations[part.operation]);
        weights += part.weight * part.weight;
      }
      const double clock = weights > 0 ? sum / weights : 0.0;
      for (const auto& part : point.parts) {
        rows.push_back(part.weight * (std::log(part.seconds / operations[part.operation]) - clock));
      }
      const double step = fused_seconds(point.run, constants, device).total();
      rows.push_back(std::log(point.seconds / step) / kStepSigma);
    }
    for (std::size_t i = 0; i < x.size(); ++i) {
      rows.push_back((x[i] - start[i]) / fused_constant_table()[i].spread);
    }
    return rows;
  };
  return with(least_squares(start, residuals));
}

double root_mean_square(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value * value;
  return values.empty() ? 0.0 : std::sqrt(sum / static_cast<double>(values.size()));
}

// log(measured / predicted) of every point's step, from the points of other models.
std::vector<double> left_out(const std::vector<Observed>& points, const spec::Device& device) {
  const auto model = [](const Observed& o) { return std::pair(o.run.layers, o.run.hidden); };
  std::set<std::pair<double, double>> models;
  for (const Observed& point : points) models.insert(model(point));
  std::vector<double> errors;
  if (models.size() < 2) return errors;
  for (const auto& one : models) {
    std::vector<Observed> others;
    std::copy_if(points.begin(), points.end(), std::back_inserter(others),
                 [&](const Observed& o) { return model(o) != one; });
    const FusedConstants constants = fit(others, device);
    for (const Observed& point : points) {
      if (model(point) != one) continue;
      errors.push_back(std::log(point.seconds / fused_seconds(point.run, constants, device).total()));
    }
  }
  return errors;
}

}  // namespace

FusedProfile fit_fused(FusedProfile profile, const spec::Device& device) {
  const std::vector<FusedPoint>& points = profile.points;
  if (points.size() < kFewestPoints) {
    throw UserError(ExitCode::kEnvironment,
                    fmt::format("{} measured steps are too few for the constants of a fused step", points.size()),
                    "measure again with `lockstep calibrate --device cuda`");
  }
  std::vector<Observed> all;
  std::vector<double> memory_errors;
  for (const FusedPoint& point : points) {
    all.push_back(observed(point, device));
    if (point.peak_bytes > 0) {
      memory_errors.push_back(std::log(point.peak_bytes / fused_memory(point.run()).total()));
    }
  }
  profile.constants = fit(all, device);
  const std::vector<double> errors = left_out(all, device);
  if (!errors.empty()) profile.time_sigma = std::max(kSmallestTimeSigma, root_mean_square(errors));
  profile.memory_sigma = std::max(kSmallestMemorySigma, root_mean_square(memory_errors));
  return profile;
}

}  // namespace lockstep::cost
