// Who holds the others up. Ranks of a synchronous run all take the same time per step, so the step says nothing: the
// one the others wait for is the one that is busy longest, whatever with (computing, loading, its host).
#pragma once

#include <vector>

#include "lockstep/report/run_facts.h"

namespace lockstep::report {

inline constexpr double kStragglerSlowdown = 0.10;

struct Standing {
  int rank = 0;
  double busy_seconds = 0.0;  // of a step: what it did not wait; where waiting was not recorded, what it computed
  double slowdown = 0.0;      // busy over the median of the ranks it is compared with, minus 1
  bool straggler = false;     // slowdown above kStragglerSlowdown
};

// In the order of facts.ranks. Ranks are compared with those of their pipeline stage, or with all where a stage has one
// rank only.
std::vector<Standing> make_standings(const RunFacts& facts);

}  // namespace lockstep::report
