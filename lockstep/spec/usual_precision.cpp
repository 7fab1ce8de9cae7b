#include "lockstep/spec/usual_precision.h"

#include <algorithm>

namespace lockstep::spec {

Precision usual_precision(const Cluster& cluster) {
  const auto any = [&](auto&& is) {
    return std::any_of(cluster.groups.begin(), cluster.groups.end(),
                       [&](const NodeGroup& group) { return is(group.device); });
  };
  if (any([](const Device& device) { return device.is_cpu(); })) return Precision::kFp32;
  return any([](const Device& device) { return !device.has_bf16(); }) ? Precision::kFp16 : Precision::kBf16;
}

}  // namespace lockstep::spec
