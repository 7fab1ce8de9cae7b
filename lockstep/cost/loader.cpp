#include "lockstep/cost/loader.h"

#include <algorithm>
#include <cmath>

namespace lockstep::cost {
namespace {

// How unevenly long batches take: standard deviation over mean.
constexpr double kBatchSpread = 0.3;

}  // namespace

double host_slowdown(const LoaderKnobs& knobs) {
  const double wanted = static_cast<double>(knobs.workers + std::max<std::int64_t>(1, knobs.threads));
  return 1 + 0.25 * std::max(0.0, wanted / kCoresPerDevice - 1);
}

double loader_stall_seconds(const LoaderKnobs& knobs, const LoaderDemand& demand) {
  if (demand.items <= 0 || demand.items_per_second <= 0) return 0;
  const double copy = demand.bytes / (knobs.pinned ? kPinnedBytesPerSecond : kPageableBytesPerSecond);
  const double exposed_copy = knobs.pinned ? std::max(0.0, copy - demand.compute_seconds) : copy;
  const double one = demand.items / demand.items_per_second;
  if (knobs.workers <= 0) return one + exposed_copy;
  const double cores = std::min(static_cast<double>(knobs.workers), kCoresPerDevice);
  const double paced = one / cores;  // seconds between batches when nobody waits
  const double slower = std::max(0.0, paced - demand.compute_seconds);
  // A queue of depth d hides fluctuations the better the deeper it is and the less the workers are loaded.
  const double load = std::min(1.0, paced / std::max(1e-12, demand.compute_seconds));
  const double depth = static_cast<double>(knobs.workers * std::max<std::int64_t>(1, knobs.prefetch));
  const double uneven = kBatchSpread * paced * std::pow(load, depth);
  return slower + uneven + exposed_copy;
}

}  // namespace lockstep::cost
