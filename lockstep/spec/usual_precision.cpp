#include "lockstep/spec/usual_precision.h"

#include <algorithm>

namespace lockstep::spec {

Precision usual_precision(const Cluster& cluster) {
  const auto any_of_kind = [&](const char* kind) {
    return std::any_of(cluster.groups.begin(), cluster.groups.end(),
                       [kind](const NodeGroup& group) { return group.device.kind == kind; });
  };
  if (any_of_kind("cpu")) return Precision::kFp32;
  return any_of_kind("V100") ? Precision::kFp16 : Precision::kBf16;
}

}  // namespace lockstep::spec
