#include "lockstep/tune/importance/importance.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace lockstep::tune {
namespace {

constexpr std::uint64_t kSeed = 0x5e7bacc5;
// Degrees of freedom that the model's own estimate of the noise counts for.
constexpr double kModelNoiseWeight = 2;

bool is_fresh(const Trial& trial) { return trial.purpose >= Purpose::kConfirm; }

std::vector<double> fresh_logs(const Config& config, std::span<const Trial> history) {
  std::vector<double> logs;
  for (const Trial& trial : history)
    if (is_fresh(trial) && measured(trial) && !trial.stopped_early && trial.config == config)
      logs.push_back(std::log(trial.throughput));
  return logs;
}

// Distinct configurations (two reverts can give the same one) with the model's joint belief about them.
struct Points {
  std::vector<Config> configs;
  std::vector<std::vector<double>> log_launches;
  std::optional<Surrogate::Joint> model;

  std::size_t add(const Config& config, const std::vector<double>& logs) {
    const auto found = std::find(configs.begin(), configs.end(), config);
    if (found != configs.end()) return static_cast<std::size_t>(found - configs.begin());
    configs.push_back(config);
    log_launches.push_back(logs);
    return configs.size() - 1;
  }

  void ask(const Beliefs& beliefs) {
    if (!beliefs.speed) return;
    std::vector<std::vector<double>> coordinates;
    std::vector<double> priors;
    for (const Config& config : configs) {
      const Candidate candidate = judge(beliefs, config);
      coordinates.push_back(candidate.coordinates);
      priors.push_back(candidate.prior_log_throughput);
    }
    model = beliefs.speed->predict_jointly(coordinates, priors);
  }
};

// Mean, variance and probability of being among the three most costly, by revert.
struct Standing {
  double mean = 0;
  double variance = 0;
  double in_top = 0;
};

std::vector<Standing> standings(const Draws& costs) {
  std::vector<Standing> result(costs.points);
  std::vector<std::size_t> rank(costs.points);
  const auto n = static_cast<double>(costs.count());
  for (std::size_t draw = 0; draw < costs.count(); ++draw) {
    for (std::size_t i = 0; i < rank.size(); ++i) {
      rank[i] = i;
      result[i].mean += costs[draw][i] / n;
      result[i].variance += costs[draw][i] * costs[draw][i] / n;
    }
    const std::size_t three = std::min<std::size_t>(3, rank.size());
    std::partial_sort(rank.begin(), rank.begin() + static_cast<std::ptrdiff_t>(three), rank.end(),
                      [&](std::size_t a, std::size_t b) { return costs[draw][a] > costs[draw][b]; });
    for (std::size_t i = 0; i < three; ++i) result[rank[i]].in_top += 1 / n;
  }
  for (Standing& standing : result)
    standing.variance = std::max(0.0, standing.variance - standing.mean * standing.mean);
  return result;
}

}  // namespace

Estimate Draws::estimate(std::size_t point) const {
  std::vector<double> sorted;
  double sum = 0;
  for (std::size_t draw = 0; draw < count(); ++draw) {
    sorted.push_back((*this)[draw][point]);
    sum += sorted.back();
  }
  if (sorted.empty()) return {};
  std::sort(sorted.begin(), sorted.end());
  const auto at = [&](double share) {
    return sorted[static_cast<std::size_t>(std::llround(share * static_cast<double>(sorted.size() - 1)))];
  };
  return {sum / static_cast<double>(sorted.size()), at(0.025), at(0.975), 0};
}

PooledSpread launch_spread(std::span<const Trial> history) {
  std::vector<Config> configs;
  std::vector<std::vector<double>> launches;
  for (const Trial& trial : history) {
    // The first launch of an explored configuration that was launched again was a lucky one more often than not.
    if (!measured(trial) || trial.stopped_early || trial.purpose == Purpose::kExplore) continue;
    const auto found = std::find(configs.begin(), configs.end(), trial.config);
    const auto index = static_cast<std::size_t>(found - configs.begin());
    if (found == configs.end()) {
      configs.push_back(trial.config);
      launches.emplace_back();
    }
    launches[index].push_back(trial.throughput);
  }
  return pooled_log_spread(launches);
}

std::vector<SetBack> set_backs(const Space& space, const Config& winner, std::span<const Trial> history) {
  std::vector<SetBack> list;
  const Config& defaults = space.default_config();
  for (std::size_t knob = 0; knob < space.size(); ++knob) {
    const Value& back = is_active(defaults.values[knob]) ? defaults.values[knob] : space.knobs()[knob].default_value;
    if (!is_active(winner.values[knob]) || winner.values[knob] == back) continue;
    std::vector<std::size_t> moved;
    const std::optional<Config> config = space.set_back(winner, knob, &moved);
    if (!config || *config == winner) continue;
    // Knobs that a constraint ties together go back as one: the same configuration is one change, not two.
    if (std::any_of(list.begin(), list.end(), [&](const SetBack& other) { return other.config == *config; })) continue;
    SetBack set_back{knob, *config, {}, fresh_logs(*config, history), false};
    for (const std::size_t other : moved) set_back.moved_along.push_back(space.knobs()[other].name);
    set_back.fails = set_back.log_launches.empty() &&
                     std::any_of(history.begin(), history.end(),
                                 [&](const Trial& trial) { return !measured(trial) && trial.config == *config; }) &&
                     std::none_of(history.begin(), history.end(),
                                  [&](const Trial& trial) { return measured(trial) && trial.config == *config; });
    list.push_back(std::move(set_back));
  }
  return list;
}

SetBackCosts set_back_costs(const Beliefs& search, const Config& winner, std::span<const Trial> history,
                            std::size_t draws) {
  SetBackCosts costs{set_backs(*search.space, winner, history), {}};
  Points points;
  points.add(winner, fresh_logs(winner, history));
  std::vector<std::size_t> point_of;
  for (const SetBack& set_back : costs.set_backs)
    point_of.push_back(set_back.fails ? 0 : points.add(set_back.config, set_back.log_launches));
  points.ask(search);
  PooledSpread spread = launch_spread(history);
  if (search.speed) spread = merge(spread, {search.speed->noise_variance(), kModelNoiseWeight});
  const Draws logs =
      posterior_draws(points.model ? &*points.model : nullptr, points.log_launches, spread, draws, kSeed);
  costs.percent.points = costs.set_backs.size();
  for (std::size_t draw = 0; draw < logs.count(); ++draw)
    for (std::size_t i = 0; i < point_of.size(); ++i)
      costs.percent.values.push_back(
          costs.set_backs[i].fails ? 100.0 : -100 * std::expm1(logs[draw][point_of[i]] - logs[draw][0]));
  return costs;
}

std::optional<SetBack> next_set_back(const Beliefs& search, const Config& winner, std::span<const Trial> history,
                                     std::span<const Trial> pending) {
  constexpr std::size_t kDraws = 500;
  constexpr double kSureOfTop = 0.97;
  const SetBackCosts costs = set_back_costs(search, winner, history, kDraws);
  const std::vector<Standing> standing = standings(costs.percent);
  const double launch_percent =
      100 *
      std::sqrt(merge(launch_spread(history), {search.speed ? search.speed->noise_variance() : 1e-3, 2}).variance);
  std::optional<std::size_t> best;
  double best_score = -1;
  // Nothing to find out where the answer stands already.
  if (choose_top(costs.percent, search.space->size() - costs.set_backs.size()).probability > kSureOfTop)
    return std::nullopt;
  for (std::size_t i = 0; i < costs.set_backs.size(); ++i) {
    const SetBack& set_back = costs.set_backs[i];
    if (set_back.fails) continue;
    const auto under_way = static_cast<double>(std::count_if(
        pending.begin(), pending.end(), [&](const Trial& trial) { return trial.config == set_back.config; }));
    const double noise = launch_percent * launch_percent;
    const double variance = standing[i].variance * noise / (noise + under_way * standing[i].variance);
    const double in_top = standing[i].in_top;
    // By how much one launch reduces the variance, where it is uncertain on which side of third place the knob is.
    double score = (in_top * (1 - in_top) + 1e-4) * variance * variance / (variance + noise);
    if (score > best_score) {
      best_score = score;
      best = i;
    }
  }
  if (!best) return std::nullopt;
  return costs.set_backs[*best];
}

}  // namespace lockstep::tune
