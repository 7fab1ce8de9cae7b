// Money and time of a whole job.
#pragma once

#include <cstdint>

#include "lockstep/plan/plan.h"
#include "lockstep/spec/cluster.h"

namespace lockstep::planner {

// What one hour on `devices` devices costs. Whole nodes are paid, in the order of the cluster's groups, which is
// where ranks are placed. Asserts that the cluster has that many.
struct HourlyPrice {
  std::int64_t paid_devices = 0;
  double usd = 0;
};
HourlyPrice hourly_price(const spec::Cluster& cluster, std::int64_t devices);

// `tokens` (samples for images) at `per_second`, stretched by 1 / goodput, on `devices` devices of the cluster.
// gpu_hours counts the devices that are paid. Nothing to do costs nothing; a speed or goodput of 0 never ends: all
// three figures are infinite.
plan::Cost cost_of(const spec::Cluster& cluster, std::int64_t devices, double tokens, double per_second,
                   double goodput);

}  // namespace lockstep::planner
