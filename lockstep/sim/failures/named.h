// Failures of clusters that were written about, as models: what was published, and the bursts that follow from it. No
// trace is kept here.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/sim/failures/comparison.h"

namespace lockstep::sim {

struct NamedFailures {
  std::string_view name;  // as in --failures NAME
  std::string_view what;
  std::string_view source;
  int nodes = 0;  // of the run, or of the trace
  double days = 0;
  int spares = 0;                      // nodes beside them that were told of
  double faults = 0;                   // nodes that went down in these days, or
  double interruptions = 0;            // interruptions: nodes that fail together are one
  double published_restarts = 0;       // of the run in these days; 0: not told
  double published_share = 0;          // of the time that trained; 0: not told
  bool published_share_least = false;  // it was "more than" that
};

std::span<const NamedFailures> named_failures();
const NamedFailures* find_named_failures(std::string_view name);  // nullptr: there is none

// Sizes of bursts, variation and repairs as usual (usual_bursts), at the rate that was published. `independent`: every
// node by itself at the same rate.
std::unique_ptr<FaultSource> faults_like(const NamedFailures& named, bool independent = false);

// Runs that were written about, simulated under one policy, beside what was told of them.
struct PublishedRun {
  const NamedFailures* named = nullptr;
  GoodputRow from_disk;    // state from checkpoints only
  GoodputRow from_memory;  // from the memory of other nodes where that is left
  // What an interruption must have cost for the published share; 0: not known.
  double published_seconds_per_restart() const;
};
// `question`: policy, samples and seed; nodes, spares and days are those of the runs. Those without a run are left out.
std::vector<PublishedRun> published_runs(const GoodputQuestion& question);

nlohmann::json to_json(const std::vector<PublishedRun>& runs);  // lockstep.published_runs/1

}  // namespace lockstep::sim
