// The nearest fix where nothing fits.
#pragma once

#include <string>

#include "lockstep/base/error.h"
#include "lockstep/planner/search/search.h"

namespace lockstep::planner {

// The error (exit code 3) for a search that found nothing: the layout that comes nearest, the term and the excess, and
// the smallest change that fits: a relaxed constraint, a layout, or a larger cluster. `request` is complete().
UserError nothing_fits(const SearchRequest& request, const SearchResult& result);

// The first half of that error, which takes no further search: what comes nearest, the term and the excess.
std::string describe_misfit(const SearchRequest& request, const SearchResult& result);

}  // namespace lockstep::planner
