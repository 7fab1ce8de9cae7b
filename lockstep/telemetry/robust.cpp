#include "lockstep/telemetry/robust.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace lockstep::telemetry {

double median_of(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double median_deviation(const std::vector<double>& values, double middle) {
  std::vector<double> deviations;
  deviations.reserve(values.size());
  for (const double value : values) deviations.push_back(std::abs(value - middle));
  return median_of(std::move(deviations));
}

double quantile_of(std::vector<double> values, double share) {
  const auto place = values.begin() + static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
  std::nth_element(values.begin(), place, values.end());
  return *place;
}

void RecentValues::push(double value) {
  values_.push_back(value);
  if (values_.size() > most_) values_.pop_front();
}

double RecentValues::deviation() const {
  if (values_.empty()) return 0.0;
  const std::vector<double> all = values();
  return median_deviation(all, median_of(all));
}

double RecentValues::upper_spread() const { return values_.empty() ? 0.0 : quantile_of(values(), 0.9) - median(); }

bool RecentValues::is_above(double value, double deviations, double least, std::size_t enough) const {
  if (values_.size() < enough) return false;
  const std::vector<double> all = values();
  const double middle = median_of(all);
  return !(value <= middle + std::max(least, deviations * median_deviation(all, middle)));
}

}  // namespace lockstep::telemetry
