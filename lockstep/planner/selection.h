// The best of many predictions is too good: of layouts that are about as fast, the search takes the one whose
// prediction errs most to the fast side (the winner's curse; Smith & Winkler 2006, "The Optimizer's Curse"). What a
// plan expects is lowered by how much that is, so that it is right on average *because* it was chosen.
//
//   log(step expected / step predicted) = kOwnShare x sigma x m(n)
//
//   sigma      of the profile: log(measured / predicted) step time. Most of it is common to all layouts of a stack and
//              does not choose between them; kOwnShare is the rest, a layout's own, found on published rows
//              (validation/selection.cpp: half of the clusters choose it, the other half is reported)
//   n          ways to split the devices over tensor, pipeline and data parallelism that the question leaves open:
//              one where the layout was given, which is therefore priced as it is
//   m(n)       expected largest of n standard normal draws (Blom 1958)
//
// It depends on the question alone, never on the candidate: no order and no ratio between candidates changes.
#pragma once

#include <cstdint>

#include "lockstep/planner/search/search.h"

namespace lockstep::planner {

inline constexpr double kOwnShare = 0.3;

// n above. `request` is complete().
std::int64_t splits_to_choose_from(const SearchRequest& request);

// m(n): 0 for one, 0.58 for two, 1.9 for twenty.
double expected_largest(std::int64_t draws);

// The logarithm above; 0 for profiles that were measured on this machine.
double selection_bias(const SearchRequest& request);

}  // namespace lockstep::planner
