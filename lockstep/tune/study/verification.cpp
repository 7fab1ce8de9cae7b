#include "lockstep/tune/study/verification.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/tune/importance/importance.h"
#include "lockstep/tune/study/choice.h"

namespace lockstep::tune {
namespace {

// Shares of the trials that may go to reverting knobs, by the number of trials: at 30 the search needs them more.
constexpr std::int64_t kFewTrials = 20, kManyTrials = 60;
constexpr double kShareOfFew = 0.03, kShareOfMany = 0.15;

std::int64_t fresh_launches(const StrategyOptions& options, std::int64_t trials) {
  if (options.confirmations >= 0) return std::min(options.confirmations, trials / 3);
  if (trials < 8) return 0;
  return trials < 40 ? 2 : 3;
}

std::int64_t most_set_backs(std::int64_t trials) {
  if (trials < kFewTrials) return 0;
  const double along =
      std::min(1.0, static_cast<double>(trials - kFewTrials) / static_cast<double>(kManyTrials - kFewTrials));
  return std::llround((kShareOfFew + along * (kShareOfMany - kShareOfFew)) * static_cast<double>(trials));
}

std::int64_t count(std::span<const Trial> trials, Purpose purpose) {
  return std::count_if(trials.begin(), trials.end(), [&](const Trial& trial) { return trial.purpose == purpose; });
}

}  // namespace

std::int64_t affordable_trials(const StrategyOptions& options, std::span<const Trial> history) {
  if (options.gpu_seconds <= 0 || history.empty()) return options.trials;
  double spent = 0;
  for (const Trial& trial : history) spent += trial.gpu_seconds;
  const double price = spent / static_cast<double>(history.size());
  if (price <= 0) return options.trials;
  const double left = std::max(0.0, options.gpu_seconds - spent);
  const auto made = static_cast<std::int64_t>(history.size());
  // Half a trial's price left is worth the attempt: the study gives it what there is.
  const double more = left < 0.5 * price ? 0.0 : std::max(1.0, std::floor(left / price));
  return std::min(options.trials, made + static_cast<std::int64_t>(std::min(more, 1e9)));
}

Allocation allocate(const Space& space, const StrategyOptions& options, std::int64_t trials) {
  Allocation allocation;
  allocation.confirm = fresh_launches(options, trials);
  if (space.has_default()) {
    allocation.control = allocation.confirm > 0 ? std::max<std::int64_t>(1, allocation.confirm * 3 / 5) : 0;
    if (options.importance) allocation.set_back = most_set_backs(trials);
  }
  allocation.search = std::max<std::int64_t>(1, trials - allocation.confirm - allocation.control - allocation.set_back);
  return allocation;
}

std::optional<Proposal> next_verification(const Space& space, const StrategyOptions& options, const Evidence& evidence,
                                          std::span<const Trial> history, std::span<const Trial> pending,
                                          std::int64_t affordable) {
  std::vector<Trial> all(history.begin(), history.end());
  all.insert(all.end(), pending.begin(), pending.end());
  const Allocation allocation = allocate(space, options, affordable);
  const Config winner = *choose_setting(space, evidence, history);
  const bool differs = space.has_default() && winner != space.default_config();
  // Spare trials (no revert is worth a launch) sharpen the figures that people will quote.
  const std::int64_t confirms = count(all, Purpose::kConfirm), controls = count(all, Purpose::kControl);
  const std::int64_t set_backs = count(all, Purpose::kSetBack);
  std::optional<SetBack> set_back;
  if (set_backs < allocation.set_back) set_back = next_set_back(evidence.beliefs(), winner, history, pending);

  Proposal proposal;
  proposal.budget_seconds = options.trial_seconds;
  // In rounds: the one farthest behind its share of the launches goes next, the winner first.
  const auto behind = [](std::int64_t made, std::int64_t wanted) {
    return wanted > 0 ? static_cast<double>(made) / static_cast<double>(wanted) : 1.0;
  };
  const double confirm_share = behind(confirms, allocation.confirm);
  const double control_share = differs ? behind(controls, allocation.control) : 1.0;
  const double set_back_share = set_back ? behind(set_backs, allocation.set_back) : 1.0;
  if (set_back && set_back_share < std::min(confirm_share, control_share)) {
    proposal.config = set_back->config;
    proposal.purpose = Purpose::kSetBack;
    proposal.set_back_knob = space.knobs()[set_back->knob].name;
    proposal.reason = fmt::format("the winner with {} back at its default", proposal.set_back_knob);
    return proposal;
  }
  if (allocation.confirm == 0) return std::nullopt;
  const bool control =
      differs && (control_share < confirm_share || (control_share == confirm_share && controls < confirms));
  proposal.config = control ? space.default_config() : winner;
  proposal.purpose = control ? Purpose::kControl : Purpose::kConfirm;
  proposal.reason = control ? "the default, for comparison" : "the winner, on a fresh launch";
  return proposal;
}

}  // namespace lockstep::tune
