#include "lockstep/diagnose/statistics.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>
#include <utility>

namespace lockstep::diagnose {
namespace {

constexpr double kNormalSpread = 1.4826;  // of the median deviation, as a standard deviation of normal noise
constexpr double kMost = 0.7;             // of the values: "most of them"
constexpr std::size_t kMostPairPoints = 400;

std::vector<double> finite(std::span<const double> values) {
  std::vector<double> kept;
  kept.reserve(values.size());
  std::copy_if(values.begin(), values.end(), std::back_inserter(kept), [](double v) { return std::isfinite(v); });
  return kept;
}

double middle_of(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2.0;
}

}  // namespace

double median(std::span<const double> values) { return middle_of(finite(values)); }

double spread(std::span<const double> values) {
  std::vector<double> distances = finite(values);
  const double middle = middle_of(distances);
  for (double& value : distances) value = std::abs(value - middle);
  return kNormalSpread * middle_of(std::move(distances));
}

double mean(std::span<const double> values) {
  const std::vector<double> kept = finite(values);
  double sum = 0.0;
  for (const double value : kept) sum += value;
  return kept.empty() ? 0.0 : sum / static_cast<double>(kept.size());
}

double trimmed_mean(std::span<const double> values, double share) {
  std::vector<double> kept = finite(values);
  std::sort(kept.begin(), kept.end());
  auto dropped = static_cast<std::size_t>(std::ceil(share * static_cast<double>(kept.size())));
  if (kept.size() < 4) dropped = 0;
  kept.resize(kept.size() - std::min(dropped, kept.size()));
  return mean(kept);
}

double share_above(std::span<const double> values, double limit) {
  const std::vector<double> kept = finite(values);
  if (kept.empty()) return 0.0;
  const auto above = std::count_if(kept.begin(), kept.end(), [limit](double v) { return v > limit; });
  return static_cast<double>(above) / static_cast<double>(kept.size());
}

bool is_clearly_positive(std::span<const double> values, double deviations) {
  const std::vector<double> kept = finite(values);
  if (kept.size() < 3 || share_above(kept, 0.0) < kMost) return false;
  const double error = spread(kept) * std::sqrt(std::numbers::pi / 2.0 / static_cast<double>(kept.size()));
  return median(kept) > deviations * error;
}

double slope(std::span<const double> values) {
  std::vector<std::pair<double, double>> points;
  const std::size_t every = values.size() / kMostPairPoints + 1;
  for (std::size_t i = 0; i < values.size(); i += every) {
    if (std::isfinite(values[i])) points.emplace_back(static_cast<double>(i), values[i]);
  }
  std::vector<double> slopes;
  for (std::size_t i = 0; i < points.size(); ++i) {
    for (std::size_t j = i + 1; j < points.size(); ++j) {
      slopes.push_back((points[j].second - points[i].second) / (points[j].first - points[i].first));
    }
  }
  return middle_of(std::move(slopes));
}

}  // namespace lockstep::diagnose
