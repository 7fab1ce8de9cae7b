#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/text.h"
#include "lockstep/diagnose/detectors/detectors.h"
#include "lockstep/diagnose/statistics.h"

namespace lockstep::diagnose {

double gain_without(double cost_percent) {
  const double lost = std::clamp(cost_percent, 0.0, 95.0);
  return 100.0 * lost / (100.0 - lost);
}

Finding make_finding(Cause cause, double confidence, double cost_percent, std::vector<int> ranks, std::string evidence,
                     std::string fix) {
  Finding finding;
  finding.cause = cause;
  finding.confidence = confidence;
  finding.cost_percent = std::min(cost_percent, 100.0);
  finding.ranks = std::move(ranks);
  finding.evidence = std::move(evidence);
  finding.fix = std::move(fix);
  finding.gain_percent = cost_percent < 100.0 ? gain_without(cost_percent) : 0.0;
  return finding;
}

std::string named_ranks(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 8;
  std::vector<std::string> names;
  for (const int rank : ranks) {
    if (names.size() == kMost) {
      names.push_back(fmt::format("... ({} in all)", ranks.size()));
      break;
    }
    names.push_back(std::to_string(rank));
  }
  return fmt::format("rank{} {}", ranks.size() == 1 ? "" : "s", join(names, ", "));
}

std::string train_with(const RunEvidence& evidence, const std::string& overrides) {
  const std::string name = evidence.row.info.name.empty() ? "JOB" : printable(evidence.row.info.name);
  return fmt::format("lockstep train {}.yaml {}", name, overrides);
}

double transfer_seconds(const RunEvidence& evidence, int rank) {
  const double blocked = evidence.usual(telemetry::metric::kExposedCommSeconds, rank);
  if (!evidence.exchanges.empty()) return blocked * evidence.parts[static_cast<std::size_t>(rank)].moved_share();
  // Without spans a rank can only guess what of it was waiting.
  return std::max(0.0, blocked - evidence.usual(telemetry::metric::kWaitSeconds, rank));
}

double transfer_seconds(const RunEvidence& evidence) {
  std::vector<double> of_ranks;
  for (int rank = 0; rank < evidence.world(); ++rank) {
    if (!evidence.of(telemetry::metric::kExposedCommSeconds, rank).empty()) {
      of_ranks.push_back(transfer_seconds(evidence, rank));
    }
  }
  return median(of_ranks);
}

double predicted_transfer_seconds(const RunEvidence& evidence) {
  if (!evidence.plan || !evidence.plan->best.breakdown) return 0.0;
  const plan::TimeBreakdown& parts = *evidence.plan->best.breakdown;
  return parts.tp_comm + parts.dp_comm + parts.pp_comm + parts.cp_comm + parts.ep_comm;
}

}  // namespace lockstep::diagnose
