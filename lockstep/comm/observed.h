// A communicator that tells when an operation begins, in its sub-groups too: for tools that watch a run or disturb it.
#pragma once

#include <functional>

#include "lockstep/comm/communicator.h"

namespace lockstep::comm {

// Like open_communicator(). `observer` is called on the group's threads, before an operation is executed.
Communicator open_observed_communicator(const CommOptions& options, std::function<void(OpKind)> observer);

}  // namespace lockstep::comm
