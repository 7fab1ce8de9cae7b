#include "lockstep/tune/verification.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace lockstep::tune {
namespace {

constexpr std::int64_t kSetBackKnobs = 8;  // at most; the others are left to the model

std::int64_t fresh_launches(const StrategyOptions& options, std::int64_t trials) {
  if (options.confirmations >= 0) return std::min(options.confirmations, trials / 3);
  if (trials < 8) return 0;
  if (trials < 40) return 2;
  if (!options.importance) return 3;
  return 5;
}

struct SetBack {
  std::size_t knob;
  Config config;
  double expected_loss;  // of log throughput
  double deviation;
};

// Knobs of the winner that are not at their default, by what the model expects the way back to cost.
std::vector<SetBack> set_backs(const Space& space, const Evidence& evidence, const Config& winner) {
  const Candidate best = judge(evidence.beliefs(), winner);
  std::vector<SetBack> list;
  for (std::size_t knob = 0; knob < space.size(); ++knob) {
    if (winner.values[knob] == space.knobs()[knob].default_value) continue;
    const std::optional<Config> config = space.set_back(winner, knob);
    if (!config || *config == winner) continue;
    const Candidate there = judge(evidence.beliefs(), *config);
    const std::vector<std::vector<double>> points{best.coordinates, there.coordinates};
    const std::vector<double> priors{best.prior_log_throughput, there.prior_log_throughput};
    const Surrogate::Joint joint = evidence.beliefs().speed->predict_jointly(points, priors);
    const double variance = joint.covariance(0, 0) + joint.covariance(1, 1) - 2 * joint.covariance(0, 1);
    list.push_back({knob, *config, joint.mean[0] - joint.mean[1], std::sqrt(std::max(variance, 0.0))});
  }
  std::stable_sort(list.begin(), list.end(), [](const SetBack& a, const SetBack& b) {
    return a.expected_loss + a.deviation > b.expected_loss + b.deviation;
  });
  if (list.size() > static_cast<std::size_t>(kSetBackKnobs)) list.resize(kSetBackKnobs);
  return list;
}

std::int64_t count(std::span<const Trial> trials, Purpose purpose, const std::string& knob = {}) {
  return std::count_if(trials.begin(), trials.end(),
                       [&](const Trial& trial) { return trial.purpose == purpose && trial.set_back_knob == knob; });
}

bool set_back_failed(std::span<const Trial> trials, const std::string& knob) {
  return std::any_of(trials.begin(), trials.end(), [&](const Trial& trial) {
    return trial.purpose == Purpose::kSetBack && trial.set_back_knob == knob && !measured(trial);
  });
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
  // Whether the last trial can be paid is the study's to decide; a proposal more is harmless.
  return std::min(options.trials, made + 1 + static_cast<std::int64_t>(std::min(left / price, 1e9)));
}

Allocation allocate(const Space& space, const StrategyOptions& options, std::int64_t trials) {
  Allocation allocation;
  allocation.confirm = fresh_launches(options, trials);
  allocation.control = allocation.confirm > 0 ? std::max<std::int64_t>(1, allocation.confirm / 2) : 0;
  if (options.importance && trials >= 20) {
    const auto knobs = std::min(static_cast<std::int64_t>(space.size()), kSetBackKnobs);
    allocation.set_back = std::min(2 * knobs, trials / 4);
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
  const Config& winner = evidence.leaders().front().config;
  Proposal proposal;
  proposal.budget_seconds = options.trial_seconds;

  struct Lane {
    Proposal proposal;
    std::int64_t made;
    std::int64_t wanted;
  };
  std::vector<Lane> lanes;
  const auto add = [&](const Config& config, Purpose purpose, const std::string& knob, std::int64_t wanted,
                       std::string reason) {
    Proposal lane = proposal;
    lane.config = config;
    lane.purpose = purpose;
    lane.set_back_knob = knob;
    lane.reason = std::move(reason);
    lanes.push_back({std::move(lane), count(all, purpose, knob), wanted});
  };
  add(winner, Purpose::kConfirm, "", allocation.confirm, "the winner, on a fresh launch");
  if (winner != space.default_config())
    add(space.default_config(), Purpose::kControl, "", allocation.control, "the default beside it");
  if (options.importance && allocation.set_back > 0) {
    const std::vector<SetBack> list = set_backs(space, evidence, winner);
    const auto each =
        list.empty() ? 0 : std::max<std::int64_t>(1, allocation.set_back / static_cast<std::int64_t>(list.size()));
    for (const SetBack& set_back : list) {
      const std::string& knob = space.knobs()[set_back.knob].name;
      if (set_back_failed(all, knob)) continue;
      add(set_back.config, Purpose::kSetBack, knob, each, fmt::format("the winner with {} back at its default", knob));
    }
  }
  // The lane that is farthest behind its share goes next, so that all advance in rounds.
  const Lane* next = nullptr;
  for (const Lane& lane : lanes) {
    if (lane.wanted <= 0 || lane.made >= lane.wanted) continue;
    if (next == nullptr || lane.made * next->wanted < next->made * lane.wanted) next = &lane;
  }
  if (next != nullptr) return next->proposal;
  // What is left over (knobs that stood at their default) sharpens the figure that people will quote.
  const auto made = static_cast<std::int64_t>(all.size());
  if (made < affordable && allocation.confirm > 0) {
    const Lane* fewest = &lanes.front();
    for (const Lane& lane : lanes)
      if (lane.made < fewest->made) fewest = &lane;
    return fewest->proposal;
  }
  return std::nullopt;
}

}  // namespace lockstep::tune
