// One rank takes longer for the same work. All ranks take equally long for a step, because they wait for each other:
// what tells them apart is the time that is their own.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/base/units.h"
#include "lockstep/diagnose/detectors/detectors.h"
#include "lockstep/diagnose/statistics.h"

namespace lockstep::diagnose {
namespace {

namespace metric = telemetry::metric;

// Of what peers take: less is between healthy devices, too. Ranks with different experts never have the same work.
constexpr double kLeastExcess = 0.08;
constexpr double kLeastExcessOfExperts = 0.15;

struct SlowRank {
  int rank = 0;
  double seconds = 0.0;  // more than its peers, per step
  double share = 0.0;    // of what they take
};

struct NamedPhase {
  std::string_view metric;
  const char* name;
};
constexpr std::array<NamedPhase, 6> kPhases = {{{metric::kForwardSeconds, "forward"},
                                                {metric::kBackwardSeconds, "backward"},
                                                {metric::kOptimizerSeconds, "the optimizer"},
                                                {metric::kDataSeconds, "the loader"},
                                                {metric::kCheckpointSeconds, "checkpoints"},
                                                {metric::kHostSeconds, "the host program"}}};

// Where most of the excess is.
NamedPhase slowest_phase(const RunEvidence& evidence, int rank, double& seconds) {
  NamedPhase worst = {metric::kComputeSeconds, "forward and backward"};
  seconds = 0.0;
  for (const NamedPhase& phase : kPhases) {
    const double more = median(evidence.excess(phase.metric, rank));
    if (more <= seconds) continue;
    seconds = more;
    worst = phase;
  }
  return worst;
}

std::vector<SlowRank> slow_ranks(const RunEvidence& evidence) {
  const bool spreads_experts = evidence.run && evidence.run->layout.ep > 1;
  const double least = spreads_experts ? kLeastExcessOfExperts : kLeastExcess;
  std::vector<SlowRank> found;
  for (int rank = 0; rank < evidence.world(); ++rank) {
    const std::vector<double> excess = evidence.own_excess(rank);
    if (!is_clearly_positive(excess)) continue;
    const double seconds = median(excess);
    const double peers = median(evidence.own_seconds(rank)) - seconds;
    if (peers <= 0.0 || seconds < least * peers) continue;
    found.push_back({rank, seconds, seconds / peers});
  }
  std::sort(found.begin(), found.end(), [](const SlowRank& a, const SlowRank& b) { return a.seconds > b.seconds; });
  // Those that are slow by far less than the slowest do not decide how long a step takes.
  std::erase_if(found, [&](const SlowRank& rank) { return rank.seconds < 0.5 * found.front().seconds; });
  return found;
}

Cause cause_of(const NamedPhase& phase) {
  if (phase.metric == metric::kDataSeconds) return Cause::kLoader;
  return phase.metric == metric::kCheckpointSeconds ? Cause::kCheckpointStall : Cause::kSlowRank;
}

}  // namespace

Findings find_slow_rank(const RunEvidence& evidence) {
  std::vector<SlowRank> slow = slow_ranks(evidence);
  if (slow.empty()) return {};
  const SlowRank worst = slow.front();
  double in_phase = 0.0;
  const NamedPhase phase = slowest_phase(evidence, worst.rank, in_phase);
  if (cause_of(phase) != Cause::kSlowRank) return {};  // the loader's and the checkpoints' detectors name the rank
  std::vector<int> ranks;
  ranks.reserve(slow.size());
  for (const SlowRank& rank : slow) ranks.push_back(rank.rank);
  std::string text =
      fmt::format("rank {} takes {} a step for itself, {:.0f}% more than its peers; {:.0f}% of that is in {}",
                  worst.rank, format_seconds(median(evidence.own_seconds(worst.rank))), 100.0 * worst.share,
                  std::min(100.0, 100.0 * in_phase / worst.seconds), phase.name);
  const auto latest = std::max_element(evidence.parts.begin(), evidence.parts.end(),
                                       [](const Part& a, const Part& b) { return a.late < b.late; });
  const bool agrees = !evidence.exchanges.empty() && latest - evidence.parts.begin() == worst.rank;
  if (agrees) text += fmt::format("; the others waited {} a step for it in collectives", format_seconds(latest->late));
  const int node = evidence.places[static_cast<std::size_t>(worst.rank)].node;
  return {make_finding(
      Cause::kSlowRank, agrees ? 0.95 : 0.85, evidence.share(worst.seconds), ranks, text,
      fmt::format("look at node {} (`lockstep doctor` there: clocks, other processes, memory), or cordon it "
                  "and go on with --resume",
                  node))};
}

}  // namespace lockstep::diagnose
