// What a proxy has other than its job, and why, for people.
#pragma once

#include <vector>

#include "lockstep/planner/proxy/proxy.h"

namespace lockstep::planner {

std::vector<Difference> differences(const spec::Job& job, const plan::Candidate& planned, const Proxy& proxy);

}  // namespace lockstep::planner
