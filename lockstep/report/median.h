// The middle of a list.
#pragma once

#include <algorithm>
#include <vector>

namespace lockstep::report {

// 0 for an empty list; the mean of the middle two where their number is even.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2.0;
}

}  // namespace lockstep::report
