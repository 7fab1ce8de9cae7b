// Explanation: why this plan, what binds, who lost and by how much, and what one change would bring.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/planner/search.h"

namespace lockstep::planner {

struct WhatIf {
  std::string change;           // "RoCE instead of InfiniBand", "16 more GPUs", "selective recompute"
  double tokens_per_second = 0; // of the best plan after the change (0: does not fit)
  double gain = 0;              // relative to the plan
};

// A Plan with reasons, why_not of the three best losers (each of another kind than the plan), and what-ifs.
struct Explained {
  plan::Plan plan;
  std::string binds;              // "compute", "memory: activations", "tensor-parallel traffic over the NICs", ...
  std::vector<WhatIf> what_ifs;   // best gain first
  std::vector<PassReport> passes;
  std::vector<cost::StagePrice> stages;
};

// Searches, prices the what-ifs, explains. Nothing fits: throws UserError (exit code 3) with the term, the excess and
// the nearest fix. A request whose layout is wholly fixed and does not fit: the same, naming the nearest layout that
// fits.
Explained explain(const SearchRequest& request);

}  // namespace lockstep::planner
