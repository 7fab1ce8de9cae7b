#include "lockstep/tune/study/strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/tune/models/acquisition.h"
#include "lockstep/tune/study/evidence.h"
#include "lockstep/tune/study/verification.h"

namespace lockstep::tune {
namespace {

constexpr double kCaution = 2;
// The last trials of the search go to what the model believes best, again if need be.
constexpr double kExploitShare = 0.08;

// Failures are paid like successes, so they are rationed: the farther they run ahead of this many, the surer a
// candidate must be of running; the farther they stay behind, the more may be risked.
double least_probability(std::int64_t failures, std::int64_t trials) {
  constexpr double kFirstFailures = 1.2, kFailureShare = 0.065;
  constexpr double kUsual = 0.6, kPerFailureAhead = 0.10, kPerFailureBehind = 0.05;
  constexpr double kBoldest = 0.5, kMostCautious = 0.85;
  const double ahead = static_cast<double>(failures) - kFirstFailures - kFailureShare * static_cast<double>(trials);
  const double least = kUsual + (ahead > 0 ? kPerFailureAhead : kPerFailureBehind) * ahead;
  return std::clamp(least, kBoldest, kMostCautious);
}

}  // namespace

Strategy::Strategy(Space space, StrategyOptions options) : space_(std::move(space)), options_(options) {}

std::optional<Config> Strategy::winner(std::span<const Trial> history) const {
  const Evidence evidence(space_, options_.prior, history);
  if (evidence.leaders().empty()) return std::nullopt;
  return evidence.leaders().front().config;
}

Allocation Strategy::allocation(std::span<const Trial> history) const {
  return allocate(space_, options_, affordable_trials(options_, history));
}

std::optional<Proposal> Strategy::next(std::span<const Trial> history, std::span<const Trial> pending) const {
  const std::int64_t made = static_cast<std::int64_t>(history.size() + pending.size());
  const std::int64_t affordable = affordable_trials(options_, history);
  if (made >= affordable) return std::nullopt;
  Proposal proposal;
  proposal.budget_seconds = options_.trial_seconds;
  const auto is_baseline = [](const Trial& trial) { return trial.purpose == Purpose::kBaseline; };
  if (std::none_of(history.begin(), history.end(), is_baseline) &&
      std::none_of(pending.begin(), pending.end(), is_baseline)) {
    proposal.config = space_.default_config();
    proposal.purpose = Purpose::kBaseline;
    proposal.reason = "the default, as a baseline";
    return proposal;
  }

  const Allocation allocation = allocate(space_, options_, affordable);
  Evidence evidence(space_, options_.prior, history);
  const bool verifying = std::any_of(history.begin(), history.end(),
                                     [](const Trial& trial) { return trial.purpose >= Purpose::kConfirm; });
  if (!evidence.leaders().empty() && (verifying || made >= allocation.search))
    return next_verification(space_, options_, evidence, history, pending, affordable);

  evidence.pretend(pending);
  AcquisitionOptions acquisition;
  acquisition.seed = options_.seed * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(made);
  acquisition.exclude = evidence.failed();
  for (const Trial& trial : pending) acquisition.exclude.push_back(trial.config);
  acquisition.caution = kCaution;
  acquisition.least_probability = least_probability(evidence.failures(), made);
  const std::int64_t exploit_from =
      allocation.search -
      static_cast<std::int64_t>(std::lround(kExploitShare * static_cast<double>(allocation.search)));
  const bool exploit = made >= exploit_from && !evidence.leaders().empty();
  // A configuration that ran is worth another launch only when it may be the winner.
  if (!exploit)
    for (const Candidate& leader : evidence.leaders()) acquisition.exclude.push_back(leader.config);
  if (exploit) {
    acquisition.exploration = 0;
    acquisition.least_probability = std::max(acquisition.least_probability, 0.8);
  }
  for (std::size_t i = 0; i < std::min<std::size_t>(3, evidence.leaders().size()); ++i)
    acquisition.starts.push_back(evidence.leaders()[i].config);
  if (!evidence.leaders().empty()) acquisition.incumbent = evidence.leaders().front().speed.mean;
  const std::optional<Candidate> best = most_promising(evidence.beliefs(), acquisition);
  if (!best) return std::nullopt;
  proposal.config = best->config;
  const bool seen = evidence.has_run(best->config);
  proposal.purpose = seen ? Purpose::kReplicate : Purpose::kExplore;
  if (!evidence.beliefs().speed)
    proposal.reason = fmt::format("nothing ran yet; runs with probability {:.2f}", best->runs);
  else
    proposal.reason = fmt::format("expected {:+.1f}% against the best so far (within {:.1f}%), runs with {:.2f}",
                                  100 * std::expm1(best->speed.mean - acquisition.incumbent),
                                  196 * std::sqrt(best->speed.variance), best->runs);
  return proposal;
}

}  // namespace lockstep::tune
