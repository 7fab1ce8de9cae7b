#include "lockstep/tune/study/conclusion.h"

#include <algorithm>
#include <cmath>

#include "lockstep/tune/importance/importance.h"
#include "lockstep/tune/models/statistics.h"
#include "lockstep/tune/objectives/front.h"
#include "lockstep/tune/study/evidence.h"

namespace lockstep::tune {
namespace {

constexpr std::size_t kDraws = 4000;
constexpr std::uint64_t kSeed = 0xc0c1;
// With fewer degrees of freedom than this the model's estimate of the noise is added.
constexpr double kFewDegrees = 3;

std::vector<double> launches_of(std::span<const Trial> history, const Config& config,
                                std::initializer_list<Purpose> purposes) {
  std::vector<double> launches;
  for (const Trial& trial : history)
    if (measured(trial) && !trial.stopped_early && trial.config == config &&
        std::find(purposes.begin(), purposes.end(), trial.purpose) != purposes.end())
      launches.push_back(trial.throughput);
  return launches;
}

// The mean of the launches is what people get on average (the mean of logarithms would be less by half the variance);
// its interval is that of the logarithm.
Estimate mean_throughput(std::span<const double> launches, const PooledSpread& spread) {
  double sum = 0;
  for (const double launch : launches) sum += launch;
  const double mean = sum / static_cast<double>(launches.size());
  const double half = log_mean(launches, spread).half_width();
  return {mean, mean * std::exp(-half), mean * std::exp(half), static_cast<std::int64_t>(launches.size())};
}

Estimate percent_of(const LogEstimate& ratio, std::size_t launches) {
  const double half = ratio.half_width();
  return {100 * std::expm1(ratio.mean), 100 * std::expm1(ratio.mean - half), 100 * std::expm1(ratio.mean + half),
          static_cast<std::int64_t>(launches)};
}

// Before any fresh launch: what the model says of the winner, with what models of this kind miss.
Estimate provisional_throughput(const Beliefs& beliefs, const Config& config, std::span<const Trial> history,
                                const PooledSpread& spread) {
  const Candidate candidate = judge(beliefs, config);
  Surrogate::Joint joint{{candidate.speed.mean}, Matrix(1)};
  joint.covariance(0, 0) = candidate.speed.variance;
  const std::vector<std::vector<double>> none(1);
  Draws draws = posterior_draws(&joint, none, spread, kDraws, kSeed);
  for (double& value : draws.values) value = std::exp(value);
  Estimate estimate = draws.estimate(0);
  estimate.launches = static_cast<std::int64_t>(
      launches_of(history, config, {Purpose::kBaseline, Purpose::kExplore, Purpose::kReplicate}).size());
  return estimate;
}

// Paired by round: the i-th launch of the winner with the i-th of the default.
std::optional<Gain> gain_of(const Config& winner, const Config& baseline, std::span<const Trial> history,
                            const PooledSpread& spread, const std::optional<BestFound>& best,
                            const std::optional<Estimate>& baseline_throughput) {
  if (winner == baseline) return Gain{};
  const std::vector<double> of_winner = launches_of(history, winner, {Purpose::kConfirm});
  const std::vector<double> of_default = launches_of(history, baseline, {Purpose::kControl});
  const std::size_t rounds = std::min(of_winner.size(), of_default.size());
  if (rounds > 0) {
    const LogEstimate ratio =
        paired_log_ratio(std::span(of_winner).first(rounds), std::span(of_default).first(rounds), spread);
    return Gain{percent_of(ratio, rounds), true};
  }
  if (!baseline_throughput || !best) return std::nullopt;
  // From the two figures, each with its own interval.
  const auto log_of = [](const Estimate& estimate) {
    const double error = std::log(estimate.high / estimate.low) / 2 / normal_quantile(0.975);
    return LogEstimate{std::log(estimate.value), error * error, INFINITY};
  };
  const LogEstimate ratio = log_difference(log_of(best->throughput), log_of(*baseline_throughput));
  return Gain{percent_of(ratio, static_cast<std::size_t>(best->throughput.launches)), false};
}

// That launches of the configuration held, else those of any other.
double devices_of(std::span<const Trial> history, const Config& config) {
  double devices = 0;
  for (const Trial& trial : history)
    if (trial.seconds > 0 && trial.gpu_seconds > 0 && (devices == 0 || trial.config == config))
      devices = trial.gpu_seconds / trial.seconds;
  return devices > 0 ? devices : 1;
}

std::optional<Estimate> median_tried(std::span<const Trial> history) {
  std::vector<double> launches;
  for (const Trial& trial : history)
    if (measured(trial) && trial.purpose <= Purpose::kReplicate) launches.push_back(trial.throughput);
  if (launches.empty()) return std::nullopt;
  std::sort(launches.begin(), launches.end());
  const auto at = [&](double share) {
    return launches[static_cast<std::size_t>(std::lround(share * static_cast<double>(launches.size() - 1)))];
  };
  return Estimate{at(0.5), at(0.25), at(0.75), static_cast<std::int64_t>(launches.size())};
}

void count_trials(std::span<const Trial> history, Conclusion& conclusion) {
  for (const Trial& trial : history) {
    ++conclusion.trials;
    conclusion.gpu_seconds += trial.gpu_seconds;
    ++conclusion.failures_by_outcome[static_cast<std::size_t>(trial.outcome)];
    if (!measured(trial)) ++conclusion.failed;
  }
  conclusion.failures_by_outcome[static_cast<std::size_t>(Outcome::kMeasured)] = 0;
}

// The cost of reverting each knob, and the three that matter most.
void add_set_backs(const SetBackCosts& costs, const Space& space, Conclusion& conclusion) {
  const auto asked = [](const SetBack& set_back) { return set_back.fails || !set_back.log_launches.empty(); };
  if (std::none_of(costs.set_backs.begin(), costs.set_backs.end(), asked)) return;
  for (KnobImportance& importance : conclusion.importance) importance.set_back_percent = Estimate{};
  for (std::size_t i = 0; i < costs.set_backs.size(); ++i) {
    const SetBack& set_back = costs.set_backs[i];
    KnobImportance& importance = conclusion.importance[set_back.knob];
    importance.set_back_percent = costs.percent.estimate(i);
    importance.set_back_percent->launches = static_cast<std::int64_t>(set_back.log_launches.size());
    importance.set_back_fails = set_back.fails;
    importance.moved_along = set_back.moved_along;
  }
  const auto name = [&](std::size_t i) { return space.knobs()[costs.set_backs[i].knob].name; };
  const TopKnobs top = choose_top(costs.percent, space.size() - costs.set_backs.size());
  for (const std::size_t i : top.top) conclusion.top.push_back(name(i));
  for (const std::size_t i : top.tied) conclusion.tied.push_back(name(i));
}

void add_importance(const Strategy& strategy, const Evidence& evidence, const Config& winner,
                    std::span<const Trial> history, Conclusion& conclusion) {
  const Space& space = strategy.space();
  Beliefs all = evidence.beliefs();
  all.speed = fit_all(space, strategy.options().prior, history);
  VarianceShares shares = variance_shares(all, history, kSeed);
  for (std::size_t knob = 0; knob < space.size(); ++knob) {
    KnobImportance importance;
    importance.knob = space.knobs()[knob].name;
    importance.variance_main_percent = shares.main[knob];
    importance.variance_total_percent = shares.total[knob];
    conclusion.importance.push_back(std::move(importance));
  }
  conclusion.interactions = std::move(shares.interactions);
  if (strategy.options().importance && space.has_default())
    add_set_backs(set_back_costs(evidence.beliefs(), winner, history, kDraws), space, conclusion);
  std::stable_sort(conclusion.importance.begin(), conclusion.importance.end(),
                   [](const KnobImportance& a, const KnobImportance& b) {
                     const double cost_a = a.set_back_percent ? a.set_back_percent->value : 0;
                     const double cost_b = b.set_back_percent ? b.set_back_percent->value : 0;
                     if (cost_a != cost_b) return cost_a > cost_b;
                     return a.variance_total_percent.value > b.variance_total_percent.value;
                   });
}

nlohmann::json to_json(const Estimate& estimate) {
  return {{"value", estimate.value}, {"low", estimate.low}, {"high", estimate.high}, {"launches", estimate.launches}};
}

nlohmann::json to_json(const KnobImportance& importance) {
  nlohmann::json document{{"knob", importance.knob},
                          {"set_back_percent", nullptr},
                          {"set_back_fails", importance.set_back_fails},
                          {"moved_along", importance.moved_along},
                          {"variance_main_percent", to_json(importance.variance_main_percent)},
                          {"variance_total_percent", to_json(importance.variance_total_percent)}};
  if (importance.set_back_percent) document["set_back_percent"] = to_json(*importance.set_back_percent);
  return document;
}

// {"config", "estimate", "low", "high", "launches"}
nlohmann::json figure(const Config& config, const Estimate& estimate, const Space& space) {
  return {{"config", space.to_json(config)},
          {"estimate", estimate.value},
          {"low", estimate.low},
          {"high", estimate.high},
          {"launches", estimate.launches}};
}

}  // namespace

Conclusion conclude(const Strategy& strategy, std::span<const Trial> history) {
  const Space& space = strategy.space();
  Conclusion conclusion;
  conclusion.baseline = space.default_config();
  conclusion.default_given = space.has_default();
  conclusion.median = median_tried(history);
  count_trials(history, conclusion);
  const std::optional<Config> winner = strategy.winner(history);
  if (!winner) return conclusion;
  if (strategy.options().wants_front()) conclusion.front = find_front(space, strategy.options(), history);

  const Evidence evidence(space, strategy.options().prior, history);
  PooledSpread spread = launch_spread(history);
  if (spread.degrees_of_freedom < kFewDegrees)
    spread = merge(spread, {evidence.beliefs().speed->noise_variance(), kFewDegrees - spread.degrees_of_freedom});
  conclusion.launch_spread_percent = 100 * std::sqrt(spread.variance);

  BestFound best{*winner, {}, false, devices_of(history, *winner)};
  const std::vector<double> fresh = launches_of(history, *winner, {Purpose::kConfirm});
  best.provisional = fresh.empty();
  best.throughput = fresh.empty() ? provisional_throughput(evidence.beliefs(), *winner, history, spread)
                                  : mean_throughput(fresh, spread);
  conclusion.best = best;
  const std::vector<double> of_default =
      launches_of(history, conclusion.baseline, {Purpose::kBaseline, Purpose::kControl});
  if (!space.has_default()) {
    add_importance(strategy, evidence, *winner, history, conclusion);
    return conclusion;
  }
  if (!of_default.empty()) conclusion.baseline_throughput = mean_throughput(of_default, spread);
  conclusion.gain =
      gain_of(*winner, conclusion.baseline, history, spread, conclusion.best, conclusion.baseline_throughput);
  add_importance(strategy, evidence, *winner, history, conclusion);
  return conclusion;
}

nlohmann::json to_json(const Conclusion& conclusion, const Space& space) {
  nlohmann::json document{{"schema", "lockstep.study/1"},
                          {"best", nullptr},
                          {"default_given", conclusion.default_given},
                          {"median", nullptr},
                          {"baseline", nullptr},
                          {"gain_percent", nullptr},
                          {"trials", conclusion.trials},
                          {"failed", conclusion.failed},
                          {"failures", nlohmann::json::object()}};
  if (conclusion.best) {
    document["best"] = figure(conclusion.best->config, conclusion.best->throughput, space);
    document["best"]["provisional"] = conclusion.best->provisional;
    document["best"]["devices"] = conclusion.best->devices;
    document["best"]["per_device"] = conclusion.best->throughput.value / conclusion.best->devices;
  }
  if (conclusion.front) document["front"] = to_json(*conclusion.front, space);
  if (conclusion.median) document["median"] = to_json(*conclusion.median);
  if (conclusion.default_given) document["baseline"] = {{"config", space.to_json(conclusion.baseline)}};
  if (conclusion.baseline_throughput)
    document["baseline"] = figure(conclusion.baseline, *conclusion.baseline_throughput, space);
  if (conclusion.gain) {
    document["gain_percent"] = to_json(conclusion.gain->percent);
    document["gain_percent"]["paired"] = conclusion.gain->paired;
  }
  for (std::size_t i = 0; i < std::size(conclusion.failures_by_outcome); ++i)
    if (conclusion.failures_by_outcome[i] > 0)
      document["failures"][to_string(static_cast<Outcome>(i))] = conclusion.failures_by_outcome[i];
  document["gpu_hours"] = conclusion.gpu_seconds / 3600;
  document["launch_spread_percent"] = conclusion.launch_spread_percent;
  document["importance"] = nlohmann::json::array();
  for (const KnobImportance& importance : conclusion.importance) document["importance"].push_back(to_json(importance));
  document["top"] = conclusion.top;
  document["tied"] = conclusion.tied;
  document["interactions"] = nlohmann::json::array();
  for (const Interaction& interaction : conclusion.interactions)
    document["interactions"].push_back({{"first", interaction.first},
                                        {"second", interaction.second},
                                        {"variance_percent", to_json(interaction.variance_percent)}});
  return document;
}

}  // namespace lockstep::tune
