#include "lockstep/tune/study/racing.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "lockstep/tune/models/statistics.h"

namespace lockstep::tune {
namespace {

constexpr double kMargin = 0.05;
constexpr double kStandardErrors = 3;
constexpr std::size_t kFewestSamples = 6, kFewestWarm = 4;
// Before anything was launched twice: launches of one configuration differ by 3%, believed as two observations are.
constexpr double kUsualSpread = 0.03, kUsualWeight = 2;
// Launches that ran to their end, and samples of this one, from which on the start of a launch says how it will end.
constexpr std::size_t kFewestEnded = 5, kFewestFirst = 2;

std::vector<std::vector<double>> launches_by_config(std::span<const Trial> history) {
  std::vector<const Config*> configs;
  std::vector<std::vector<double>> launches;
  for (const Trial& trial : history) {
    if (!measured(trial) || trial.throughput <= 0 || trial.stopped_early) continue;
    const auto known =
        std::find_if(configs.begin(), configs.end(), [&](const Config* c) { return *c == trial.config; });
    const auto row = static_cast<std::size_t>(known - configs.begin());
    if (known == configs.end()) {
      configs.push_back(&trial.config);
      launches.emplace_back();
    }
    launches[row].push_back(trial.throughput);
  }
  return launches;
}

}  // namespace

Race::Race(std::span<const Trial> history) {
  for (const Trial& trial : history)
    if (measured(trial) && !trial.stopped_early && trial.samples.size() > kFewestFirst && trial.throughput > 0)
      ended_.push_back({trial.samples, std::log(summarize_launch(trial.samples).mean)});
  const std::vector<std::vector<double>> launches = launches_by_config(history);
  for (const std::vector<double>& row : launches) {
    best_ = std::max(best_, std::accumulate(row.begin(), row.end(), 0.0) / static_cast<double>(row.size()));
  }
  const PooledSpread spread = pooled_log_spread(launches);
  const double degrees = spread.degrees_of_freedom;
  launch_degrees_ = degrees + kUsualWeight;
  launch_variance_ =
      (degrees * spread.variance + kUsualWeight * kUsualSpread * kUsualSpread) / (degrees + kUsualWeight);
}

bool Race::is_hopeless(std::span<const double> samples) const {
  return best_ > 0 && (is_hopeless_start(samples) || is_hopeless_launch(samples));
}

bool Race::is_hopeless_start(std::span<const double> samples) const {
  const std::size_t first = samples.size();
  if (first < kFewestFirst) return false;
  const auto log_of_first = [&](std::span<const double> launch) {
    double sum = 0;
    for (const double sample : launch.first(first)) sum += sample;
    return std::log(sum / static_cast<double>(first));
  };
  // What launches that ended made of as many first samples.
  std::vector<double> ratios;
  for (const Ended& launch : ended_)
    if (launch.samples.size() > first) ratios.push_back(launch.log_mean - log_of_first(launch.samples));
  if (ratios.size() < kFewestEnded) return false;
  const auto count = static_cast<double>(ratios.size());
  const double mean = std::accumulate(ratios.begin(), ratios.end(), 0.0) / count;
  double variance = 0;
  for (const double ratio : ratios) variance += (ratio - mean) * (ratio - mean) / (count - 1);
  const LogEstimate reach{log_of_first(samples) + mean, variance * (1 + 1 / count), count - 1};
  // The best is a launch mean too, so the spread between launches counts twice.
  const LogEstimate best{std::log(best_), 2 * launch_variance_, launch_degrees_};
  const LogEstimate ahead = log_difference(reach, best);
  const double quantile = student_t_quantile(kSurelyWorse, std::max(1.0, ahead.degrees_of_freedom));
  return ahead.mean + quantile * std::sqrt(ahead.variance) < 0;
}

bool Race::is_hopeless_launch(std::span<const double> samples) const {
  if (samples.size() < kFewestSamples) return false;
  const LaunchSummary launch = summarize_launch(samples);
  if (samples.size() - launch.warm_up < kFewestWarm || launch.mean <= 0) return false;
  const double within = launch.standard_error / launch.mean;
  const double error = std::sqrt(within * within + 2 * launch_variance_);
  return launch.mean * std::exp(kStandardErrors * error) < best_ * (1 - kMargin);
}

}  // namespace lockstep::tune
