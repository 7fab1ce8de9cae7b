// Steps that stand still while checkpoints or snapshots are taken.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/units.h"
#include "lockstep/diagnose/detectors/detectors.h"
#include "lockstep/diagnose/statistics.h"

namespace lockstep::diagnose {
namespace {

constexpr double kAcceptedShare = 0.02;  // of the time: what checkpoints may cost

}  // namespace

Findings find_checkpoint_stall(const RunEvidence& evidence) {
  double worst = 0.0, longest = 0.0;
  int rank_of_worst = 0;
  std::int64_t stalls = 0;
  std::vector<double> of_ranks;
  for (int rank = 0; rank < evidence.world(); ++rank) {
    const std::vector<double>& stalled = evidence.of(telemetry::metric::kCheckpointSeconds, rank);
    const double each = mean(stalled);
    of_ranks.push_back(each);
    if (each <= worst) continue;
    worst = each;
    rank_of_worst = rank;
    stalls = std::count_if(stalled.begin(), stalled.end(), [&](double s) { return s > 0.1 * evidence.step_seconds; });
    longest = *std::max_element(stalled.begin(), stalled.end());
  }
  if (stalls < 2) return {};
  const double step = mean(evidence.of(telemetry::metric::kStepSeconds, rank_of_worst));
  if (step <= 0.0) return {};
  const double cost = 100.0 * worst / step;
  const auto counted = static_cast<double>(evidence.steps.size());
  const double every = counted / static_cast<double>(stalls);
  const auto wanted =
      static_cast<std::int64_t>(std::ceil(every * (worst / std::max(step - worst, 1e-12)) / kAcceptedShare));
  std::vector<int> ranks;
  if (evidence.world() > 1 && median(of_ranks) < 0.5 * worst) ranks.push_back(rank_of_worst);
  return {
      make_finding(Cause::kCheckpointStall, 0.9, cost, ranks,
                   fmt::format("{} of {} steps stood still for a checkpoint, {} at most, {:.0f}% of the time in all",
                               stalls, evidence.steps.size(), format_seconds(longest), cost),
                   train_with(evidence, fmt::format("checkpoint.every_steps={}", wanted)) +
                       ": they then cost 2%; or a faster checkpoint.directory")};
}

}  // namespace lockstep::diagnose
