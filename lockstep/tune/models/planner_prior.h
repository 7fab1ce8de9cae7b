// The planner's prediction as what is believed before anything ran.
#pragma once

#include <memory>

#include "lockstep/tune/job/pricer.h"
#include "lockstep/tune/models/prior.h"

namespace lockstep::tune {

// Remembers what it was asked about. Thread-safe; never throws. Nothing is believed (nullopt) where the
// planner cannot price the job: a CPU that was not calibrated with those ranks and threads.
std::unique_ptr<Prior> make_planner_prior(std::shared_ptr<const JobPricer> pricer);

}  // namespace lockstep::tune
