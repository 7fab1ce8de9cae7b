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
  const std::vector<std::vector<double>> launches = launches_by_config(history);
  for (const std::vector<double>& row : launches) {
    best_ = std::max(best_, std::accumulate(row.begin(), row.end(), 0.0) / static_cast<double>(row.size()));
  }
  const PooledSpread spread = pooled_log_spread(launches);
  const double degrees = spread.degrees_of_freedom;
  launch_variance_ =
      (degrees * spread.variance + kUsualWeight * kUsualSpread * kUsualSpread) / (degrees + kUsualWeight);
}

bool Race::is_hopeless(std::span<const double> samples) const {
  if (best_ <= 0 || samples.size() < kFewestSamples) return false;
  const LaunchSummary launch = summarize_launch(samples);
  if (samples.size() - launch.warm_up < kFewestWarm || launch.mean <= 0) return false;
  const double within = launch.standard_error / launch.mean;
  // The best is a launch mean too, so the spread between launches counts twice.
  const double error = std::sqrt(within * within + 2 * launch_variance_);
  return launch.mean * std::exp(kStandardErrors * error) < best_ * (1 - kMargin);
}

}  // namespace lockstep::tune
