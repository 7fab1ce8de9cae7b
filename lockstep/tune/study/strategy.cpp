#include "lockstep/tune/study/strategy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "lockstep/tune/models/acquisition.h"
#include "lockstep/tune/objectives/front.h"
#include "lockstep/tune/study/choice.h"
#include "lockstep/tune/study/evidence.h"
#include "lockstep/tune/study/verification.h"

namespace lockstep::tune {
namespace {

// Until so many were measured, or twice as many tried, the space is filled: no model knows anything yet.
constexpr std::int64_t kFewestFilling = 4, kMostFilling = 7;
// Where the machine drifts by more than this (standard deviation), the best known is launched again every so often.
constexpr double kDriftWorthAnAnchor = 0.04;
constexpr std::int64_t kTrialsBetweenAnchors = 9;

std::int64_t filling_trials(std::int64_t trials) {
  return std::clamp<std::int64_t>(trials / 6, std::min(kFewestFilling, trials / 3), kMostFilling);
}

}  // namespace

Strategy::Strategy(Space space, StrategyOptions options) : space_(std::move(space)), options_(std::move(options)) {}

std::optional<Config> Strategy::winner(std::span<const Trial> history) const {
  if (options_.wants_front()) return fastest_of_front(space_, options_, history);
  const Evidence evidence(space_, options_.prior, history);
  return choose_setting(space_, evidence, history);
}

Allocation Strategy::allocation(std::span<const Trial> history) const {
  return allocate(space_, options_, affordable_trials(options_, history));
}

std::optional<Proposal> Strategy::next(std::span<const Trial> history, std::span<const Trial> pending) const {
  if (options_.wants_front()) return next_for_front(space_, options_, history, pending);
  const std::int64_t made = static_cast<std::int64_t>(history.size() + pending.size());
  const std::int64_t affordable = affordable_trials(options_, history);
  if (made >= affordable) return std::nullopt;
  Proposal proposal;
  proposal.budget_seconds = options_.trial_seconds;
  const auto is_baseline = [](const Trial& trial) { return trial.purpose == Purpose::kBaseline; };
  if (space_.has_default() && std::none_of(history.begin(), history.end(), is_baseline) &&
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
  if (std::optional<Proposal> found = search(evidence, history, pending, allocation.search)) return found;
  // Every setting was tried: what is left sharpens the figures.
  if (evidence.leaders().empty()) return std::nullopt;
  return next_verification(space_, options_, evidence, history, pending, affordable);
}

std::optional<Proposal> Strategy::search(const Evidence& evidence, std::span<const Trial> history,
                                         std::span<const Trial> pending, std::int64_t trials) const {
  const auto made = static_cast<std::int64_t>(history.size() + pending.size());
  Proposal proposal;
  proposal.budget_seconds = options_.trial_seconds;
  if (const Config* anchor = anchor_due(evidence, history)) {
    proposal.config = *anchor;
    proposal.purpose = Purpose::kReplicate;
    proposal.reason = "the machine drifts: the best so far again";
    return proposal;
  }
  AcquisitionOptions acquisition;
  acquisition.seed = options_.seed * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(made);
  acquisition.exclude = evidence.failed();
  for (const Trial& trial : pending) acquisition.exclude.push_back(trial.config);
  const std::vector<Candidate>& leaders = evidence.leaders();
  const std::int64_t filling = filling_trials(trials);
  if (static_cast<std::int64_t>(leaders.size()) < filling && made < 2 * filling) {
    std::vector<std::vector<double>> tried;
    for (const Trial& trial : history) tried.push_back(space_.coordinates(trial.config));
    for (const Trial& trial : pending) tried.push_back(space_.coordinates(trial.config));
    for (const Candidate& leader : leaders) acquisition.exclude.push_back(leader.config);
    if (const std::optional<Candidate> far = spread_out(evidence.beliefs(), acquisition, tried)) {
      proposal.config = far->config;
      proposal.reason = fmt::format("unlike all that was tried; runs with probability {:.2f}", far->runs);
      return proposal;
    }
  }
  // One launch of a setting and the model of all the others tell enough of it; another is a trial that finds nothing.
  for (const Candidate& leader : leaders) acquisition.exclude.push_back(leader.config);
  for (std::size_t i = 0; i < std::min<std::size_t>(3, leaders.size()); ++i)
    acquisition.starts.push_back(leaders[i].config);
  if (!leaders.empty()) acquisition.incumbent = leaders.front().speed.mean;
  const std::optional<Candidate> best = most_promising(evidence.beliefs(), acquisition);
  if (!best) return std::nullopt;
  proposal.config = best->config;
  if (!evidence.beliefs().speed)
    proposal.reason = fmt::format("nothing ran yet; runs with probability {:.2f}", best->runs);
  else
    proposal.reason = fmt::format(
        "expected {:+.1f}% against the best so far (within {:.1f}%), runs with probability {:.2f}",
        100 * std::expm1(best->speed.mean - acquisition.incumbent), 196 * std::sqrt(best->speed.variance), best->runs);
  return proposal;
}

const Config* Strategy::anchor_due(const Evidence& evidence, std::span<const Trial> history) const {
  if (!evidence.beliefs().speed || evidence.leaders().empty()) return nullptr;
  if (evidence.beliefs().speed->drift_variance() < kDriftWorthAnAnchor * kDriftWorthAnAnchor) return nullptr;
  const Config& best = evidence.leaders().front().config;
  const auto recent = static_cast<std::size_t>(kTrialsBetweenAnchors);
  // Any setting launched a second time says how the machine changed.
  std::size_t since = 0;
  for (std::size_t n = history.size(); n-- > 0; ++since)
    if (history[n].purpose == Purpose::kReplicate || history[n].config == best) break;
  return since >= recent ? &best : nullptr;
}

}  // namespace lockstep::tune
