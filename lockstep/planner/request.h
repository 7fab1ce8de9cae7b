// What a search is asked, checked.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/planner/search.h"

namespace lockstep::planner {

// The error (exit code 2) of a complete() request that leaves no layout: names the rule that its constraints break.
UserError contradiction(const SearchRequest& request);

// Throws UserError for names of passes that do not exist or cannot be switched off.
void require_passes(const std::vector<std::string>& switched_off);

}  // namespace lockstep::planner
