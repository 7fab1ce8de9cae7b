#include "lockstep/planner/money.h"

#include <algorithm>
#include <limits>

#include "lockstep/base/error.h"

namespace lockstep::planner {
HourlyPrice hourly_price(const spec::Cluster& cluster, std::int64_t devices) {
  HourlyPrice price;
  std::int64_t missing = devices;
  for (const spec::NodeGroup& group : cluster.groups) {
    if (missing <= 0) break;
    const std::int64_t per_node = group.devices_per_node;
    const std::int64_t paid = std::min(group.nodes, (missing + per_node - 1) / per_node) * per_node;
    price.paid_devices += paid;
    price.usd += static_cast<double>(paid) * group.price_per_device_hour_usd;
    missing -= paid;
  }
  LOCKSTEP_ASSERT(missing <= 0, "more devices than the cluster has");
  return price;
}

plan::Cost cost_of(const spec::Cluster& cluster, std::int64_t devices, double tokens, double per_second,
                   double goodput) {
  if (tokens <= 0) return {};
  if (per_second <= 0 || goodput <= 0) {
    constexpr double kNever = std::numeric_limits<double>::infinity();
    return {.gpu_hours = kNever, .usd = kNever, .days = kNever};
  }
  const double hours = tokens / per_second / goodput / 3600;
  const HourlyPrice price = hourly_price(cluster, devices);
  return {.gpu_hours = hours * static_cast<double>(price.paid_devices), .usd = hours * price.usd, .days = hours / 24};
}

}  // namespace lockstep::planner
