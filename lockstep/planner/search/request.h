// What a search is asked, checked.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/planner/search/search.h"

namespace lockstep::planner {

// The error (exit code 2) of a complete() request that leaves no layout: names the rule that its constraints break.
UserError contradiction(const SearchRequest& request);

// What `lockstep train` says against the layout: fp8 or narrow optimizer states without the fused step, which alone
// trains them. Nothing where it trains, and where the profile is of another framework, whose plan this is then.
// `micro`: of the plan; 0: some micro-batch will do.
std::optional<std::string> find_untrained(const SearchRequest& request, const plan::Layout& layout,
                                          std::int64_t micro = 0);
// Throws it as a UserError (exit code 2) where the cluster is one device, so that every layout is refused. On several
// devices fp8 is a fair question about another framework.
void require_trained(const SearchRequest& request);

// Throws UserError for names of passes that do not exist or cannot be switched off.
void require_passes(const std::vector<std::string>& switched_off);

}  // namespace lockstep::planner
