// Money and time of a whole job.
#pragma once

#include "lockstep/plan/plan.h"
#include "lockstep/spec/cluster.h"

namespace lockstep::planner {

// `tokens` (samples for images) at `per_second`, stretched by 1 / goodput, on `devices` devices of the cluster (whole
// nodes are paid; the cheapest groups first when not all are used).
plan::Cost cost_of(const spec::Cluster& cluster, std::int64_t devices, double tokens, double per_second,
                   double goodput);

}  // namespace lockstep::planner
