// The precision that a cluster's devices train in by default.
#pragma once

#include "lockstep/spec/job.h"

namespace lockstep::spec {

// fp32 if a group has CPUs, fp16 if one has V100s (which lack bf16), else bf16.
Precision usual_precision(const Cluster& cluster);

}  // namespace lockstep::spec
