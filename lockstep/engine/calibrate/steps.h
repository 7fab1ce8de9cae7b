// The sweeps of calibration that involve all ranks: collectives, their overlap with compute, and whole training steps
// of small models that check what the tables predict.
#pragma once

#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/cost/profile/profile.h"
#include "lockstep/cost/step_time.h"
#include "lockstep/engine/calibrate/sampler.h"

namespace lockstep::engine {

// All-reduce over message sizes. Nothing for one rank. Collective.
void measure_collectives(Sampler& sampler, comm::Communicator& communicator, bool quick, cost::Profile& profile);

// profile.overlap: how much of an all-reduce disappears behind matrix products of about the same length. On cores that
// are all busy this is little: the bytes are moved by the same cores.
void measure_overlap(Sampler& sampler, comm::Communicator& communicator, cost::Profile& profile);

// The models whose steps are timed: transformers, and convolutional networks when `images`.
std::vector<cost::Workload> check_workloads(bool transformers, bool images, spec::Precision precision);

// Models of the widths of `workloads` that are none of them: shallower, deeper, with a larger micro-batch; of image
// networks, which have no depth to change, with smaller and larger ones.
std::vector<cost::Workload> related_workloads(const std::vector<cost::Workload>& workloads);

// Times full steps (forward, backward with overlapped reduction, norm, optimizer) and appends the check to the profile,
// priced from its tables. Collective.
void measure_check(Sampler& sampler, comm::Communicator& communicator, const cost::Workload& workload,
                   cost::Profile& profile);

}  // namespace lockstep::engine
