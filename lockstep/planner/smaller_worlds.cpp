#include "lockstep/planner/smaller_worlds.h"

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/plan/resize.h"
#include "lockstep/plan/run.h"
#include "lockstep/planner/candidate.h"

namespace lockstep::planner {

SmallerWorlds smaller_worlds(const spec::Job& job, const plan::Plan& planned, const cost::Profile* profile) {
  SmallerWorlds worlds;
  std::int64_t nodes = 0;
  for (const spec::NodeGroup& group : planned.cluster.groups) nodes += group.nodes;
  while (--nodes > 0) {
    std::optional<plan::Plan> smaller = plan::resized(job, planned, nodes);
    if (!smaller) continue;
    spec::Job resized = job;
    resized.cluster = smaller->cluster;
    plan::follow(resized, smaller->best);
    try {
      smaller->best.memory = counted_candidate(plan::run_of(resized, smaller->best), profile).memory;
      worlds.plans.push_back(std::move(*smaller));
    } catch (const UserError& error) {
      if (error.code() != ExitCode::kAnswerIsNo) throw;
      worlds.refused[static_cast<int>(nodes)] = error.what();
    }
  }
  return worlds;
}

}  // namespace lockstep::planner
