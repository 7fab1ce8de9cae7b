// Whether ranks that should hold the same weights do.
#pragma once

#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/nn/layers.h"

namespace lockstep::parallel {

// Collective over `group`. Throws UserError on every rank when ranks hold different parameters (count, order, name,
// shape, dtype), naming the first difference and the ranks.
void check_same_parameters(const std::vector<nn::DeclaredParameter>& parameters, comm::Communicator& group);

}  // namespace lockstep::parallel
