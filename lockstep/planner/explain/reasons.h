// Reasons: for every choice of the plan the nearest other choice and what it would have cost.
#pragma once

#include <string>
#include <vector>

#include "lockstep/planner/search/search.h"

namespace lockstep::planner {

// One line per choice that a reader would question: does one device hold the model, tensor, pipeline, data and expert
// parallelism, recompute, micro-batch, and where the interval comes from. `result.best` is not empty.
std::vector<std::string> reasons_for(const SearchRequest& request, const cost::Pricer& pricer,
                                     const SearchResult& result);

// A candidate that lost, and the choice that sets it apart from the plan ("tp=4").
struct Loser {
  std::string family;
  Ranked candidate;
};

// At most `count`, best first, each of another kind: another degree of tensor parallelism, of pipeline, of sharding,
// another recompute, ... Those that fit come before those that do not.
std::vector<Loser> best_losers(const SearchRequest& request, const SearchResult& result, std::size_t count);

}  // namespace lockstep::planner
