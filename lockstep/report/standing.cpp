#include "lockstep/report/standing.h"

#include <algorithm>
#include <functional>
#include <map>

#include "lockstep/report/median.h"

namespace lockstep::report {
namespace {

using Busy = std::function<double(const PhaseSeconds&)>;

Busy busy_by(const RunFacts& facts) {
  const auto all = [&](double PhaseSeconds::*field) {
    return std::all_of(facts.ranks.begin(), facts.ranks.end(),
                       [&](const RankFacts& rank) { return rank.mean.*field > 0.0; });
  };
  const bool waits =
      std::any_of(facts.ranks.begin(), facts.ranks.end(), [](const RankFacts& rank) { return rank.mean.wait > 0.0; });
  if (waits && all(&PhaseSeconds::step)) return [](const PhaseSeconds& mean) { return mean.step - mean.wait; };
  if (all(&PhaseSeconds::compute)) return [](const PhaseSeconds& mean) { return mean.compute; };
  return [](const PhaseSeconds& mean) { return mean.step; };
}

}  // namespace

std::vector<Standing> make_standings(const RunFacts& facts) {
  const Busy busy = busy_by(facts);
  std::map<std::int64_t, std::vector<double>> stages;
  std::vector<double> everybody;
  for (const RankFacts& rank : facts.ranks) {
    if (rank.steps == 0) continue;
    stages[stage_of(facts, rank.rank)].push_back(busy(rank.mean));
    everybody.push_back(busy(rank.mean));
  }
  const bool by_stage =
      std::all_of(stages.begin(), stages.end(), [](const auto& each) { return each.second.size() > 1; });
  std::vector<Standing> standings;
  for (const RankFacts& rank : facts.ranks) {
    Standing standing{rank.rank, rank.steps > 0 ? busy(rank.mean) : 0.0};
    if (rank.steps > 0) {
      const double typical = median(by_stage ? stages[stage_of(facts, rank.rank)] : everybody);
      if (typical > 0.0) standing.slowdown = standing.busy_seconds / typical - 1.0;
      standing.straggler = everybody.size() > 1 && standing.slowdown > kStragglerSlowdown;
    }
    standings.push_back(standing);
  }
  return standings;
}

}  // namespace lockstep::report
