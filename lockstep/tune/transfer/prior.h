// Earlier studies as a Prior of a new one. A prior can be wrong: the surrogate learns by how much to believe it, and
// the more trials disagree, the less it counts (models/surrogate.h).
#pragma once

#include <memory>
#include <span>

#include "lockstep/tune/models/prior.h"
#include "lockstep/tune/space/space.h"
#include "lockstep/tune/study/trial.h"

namespace lockstep::tune {

// What a model of the `earlier` trials (of `space`, see place_trials()) expects: its mean of log throughput, and how
// likely a setting is to run, never quite sure of either. Where the earlier trials say little, what `base` believes, or
// without it what names tell. `base` itself (it may be
// null) where none of them ran.
std::unique_ptr<Prior> make_transfer_prior(const Space& space, std::span<const Trial> earlier,
                                           std::unique_ptr<Prior> base);

}  // namespace lockstep::tune
