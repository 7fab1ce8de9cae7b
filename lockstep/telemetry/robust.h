// Medians: what is usual, told from values of which some are not.
#pragma once

#include <cstddef>
#include <deque>
#include <vector>

namespace lockstep::telemetry {

// The upper of the two in the middle where there are two. `values` must not be empty.
double median_of(std::vector<double> values);
// Median of the distances from `middle`; 1.4826 times it is the standard deviation of normal noise.
double median_deviation(const std::vector<double>& values, double middle);

// The value that `share` of them are below.
double quantile_of(std::vector<double> values, double share);

// The last values, at most `most`.
class RecentValues {
 public:
  explicit RecentValues(std::size_t most) : most_(most) {}

  void push(double value);
  void clear() { values_.clear(); }
  std::size_t size() const { return values_.size(); }
  bool empty() const { return values_.empty(); }
  std::vector<double> values() const { return {values_.begin(), values_.end()}; }  // oldest first
  double median() const { return median_of(values()); }                            // of at least one value
  double deviation() const;                                                        // median_deviation(); 0 of none

  // How far the highest tenth begins above the median; 0 of none. 1.28 standard deviations of normal noise.
  double upper_spread() const;

  // Above the median by more than `least` and more than `deviations` median deviations; true for what is not a number.
  // False while there are fewer than `enough` values.
  bool is_above(double value, double deviations, double least, std::size_t enough) const;

 private:
  std::size_t most_;
  std::deque<double> values_;
};

}  // namespace lockstep::telemetry
