#include "lockstep/planner/selection.h"

#include <algorithm>
#include <cmath>

#include "lockstep/planner/capabilities.h"
#include "lockstep/planner/search/space.h"

namespace lockstep::planner {
namespace {

// The inverse of the normal distribution function for 0.5 <= p < 1, by bisection.
double normal_quantile(double p) {
  double low = 0, high = 10;
  for (int i = 0; i < 60; ++i) {
    const double middle = (low + high) / 2;
    (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace

std::int64_t splits_to_choose_from(const SearchRequest& request) {
  const Bounds bounds(request.constraints);
  const std::int64_t devices = request.cluster.devices();
  const bool language = request.model.is_language_model();
  const auto stack_allows = [&](std::int64_t tp, std::int64_t pp) {
    plan::Layout layout;
    layout.tp = tp;
    layout.pp = pp;
    layout.sequence_parallel = tp > 1;
    if (pp > 1) layout.schedule = plan::Schedule::kOneForwardOneBackward;
    return request.framework == nullptr || !request.framework->find_mesh_problem(layout, request.model) ||
           (tp == 1 && pp == 1);
  };
  std::int64_t splits = 0;
  for (const std::int64_t tp : divisors(devices)) {
    if (!bounds.allow(Bounds::kTp, tp) || (tp > 1 && !language)) continue;
    for (const std::int64_t pp : divisors(devices / tp)) {
      const bool possible = pp == 1 || (language && pp <= request.model.layers);
      if (possible && bounds.allow(Bounds::kPp, pp) && stack_allows(tp, pp)) ++splits;
    }
  }
  return std::max<std::int64_t>(1, splits);
}

double expected_largest(std::int64_t draws) {
  if (draws <= 1) return 0;
  const double n = static_cast<double>(draws);
  return normal_quantile((n - 0.375) / (n + 0.25));
}

double selection_bias(const SearchRequest& request) {
  if (request.selection) return *request.selection;
  const auto& fitted = request.profile.fitted;
  if (!fitted || request.profile.provenance.method.starts_with("lockstep calibrate")) return 0;
  return kOwnShare * fitted->residuals.time * expected_largest(splits_to_choose_from(request));
}

}  // namespace lockstep::planner
