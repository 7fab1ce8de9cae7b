// Small nonlinear least squares: a handful of unknowns, some hundred residuals. Pure.
#pragma once

#include <functional>
#include <vector>

namespace lockstep::cost {

// The x near `start` that minimises the sum of squares of residuals(x), by Levenberg (1944) and Marquardt (1963) with
// derivatives from central differences. `residuals` returns as many values for every x, all finite. Unknowns should be
// of about the same size: pass logarithms.
std::vector<double> least_squares(std::vector<double> start,
                                  const std::function<std::vector<double>(const std::vector<double>&)>& residuals);

}  // namespace lockstep::cost
