// The same run on another number of ranks, for worlds that get smaller and larger while they train.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/plan/plan.h"
#include "lockstep/spec/job.h"

namespace lockstep::plan {

// What splits the model (tp, pp, cp, ep) stays, and so does the global batch; replicas and shards follow the ranks.
// Without figures. Nothing when there is no such run on `nodes` nodes: the axes do not divide, or the
// verdict refuses it. Memory is cost's to judge. Samples that do not divide evenly are dealt out by the engine, which
// keeps the batch of the run (engine/kept_batch.h).
std::optional<Plan> resized(const spec::Job& job, const Plan& planned, std::int64_t nodes);

}  // namespace lockstep::plan
