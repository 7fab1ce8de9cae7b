// The precision that a cluster's devices are trained in where nobody says.
#pragma once

#include "lockstep/spec/job.h"

namespace lockstep::spec {

// fp32 where a group is of CPUs, fp16 where one is of V100s (which have no bf16), else bf16.
Precision usual_precision(const Cluster& cluster);

}  // namespace lockstep::spec
