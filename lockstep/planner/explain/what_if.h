// What one change to the cluster or the plan would bring: each is a search of its own with the change made, over the
// layouts near the plan (its cp and ep and no more ZeRO; on as many devices also its schedule and no more tp and pp),
// which takes milliseconds.
#pragma once

#include <vector>

#include "lockstep/planner/explain/explain.h"

namespace lockstep::planner {

// The change whose gain tells whether memory is the bottleneck.
inline constexpr const char* kTwiceTheMemory = "twice the memory per GPU";

// Only changes that mean something here: no NICs on one node, no pipeline of none. Best gain first. `request` is
// complete(); `result.best` is not empty.
std::vector<WhatIf> what_ifs(const SearchRequest& request, const SearchResult& result);

// That one change alone, as what_ifs() has it.
WhatIf twice_the_memory(const SearchRequest& request, const SearchResult& result);

}  // namespace lockstep::planner
