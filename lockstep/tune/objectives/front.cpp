#include "lockstep/tune/objectives/front.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "lockstep/tune/importance/importance.h"
#include "lockstep/tune/models/acquisition.h"
#include "lockstep/tune/models/statistics.h"
#include "lockstep/tune/objectives/pareto.h"
#include "lockstep/tune/study/evidence.h"
#include "lockstep/tune/study/verification.h"

namespace lockstep::tune {
namespace {

constexpr std::int64_t kFewestFilling = 4, kMostFilling = 7;  // trials far apart, before a model knows anything
constexpr std::int64_t kFewestForFresh = 8;                   // trials of a study that spends some on fresh launches
constexpr int kDraws = 24;                                    // of each candidate's scores
constexpr int kRandomCandidates = 250, kStarts = 4, kClimbs = 4;
constexpr double kLeastRuns = 0.2;
// The reference point lies this share of the front's extent beyond its worst corner, so that its ends are worth moving.
constexpr double kBeyond = 0.25, kLeastExtent = 0.1;
constexpr double kFewDegrees = 3;

// No belief: the usual sketch of a knob's effect is about throughput and nothing else.
class NoBelief final : public Prior {
 public:
  std::optional<Belief> operator()(const Config&) const override { return std::nullopt; }
};

// The models of all objectives, and the front by their means.
class Models {
 public:
  Models(const Space& space, const StrategyOptions& options, std::span<const Trial> history) {
    for (const Objective& objective : options.objectives) {
      trials_.push_back(as_throughput(objective, history, options.usd_per_device_hour));
      const bool throughput = objective.source == Objective::Source::kThroughput;
      evidence_.push_back(std::make_unique<Evidence>(space, throughput ? options.prior : &no_belief_, trials_.back()));
    }
    for (const Candidate& leader : evidence_.front()->leaders()) {
      if (!knows(leader.config)) continue;
      configs_.push_back(leader.config);
      scores_.push_back(means(leader.config));
    }
    for (const std::size_t i : front_of(scores_)) front_.push_back(i);
  }

  bool fitted() const {
    return std::all_of(evidence_.begin(), evidence_.end(),
                       [](const auto& e) { return e->beliefs().speed.has_value(); });
  }
  const Evidence& first() const { return *evidence_.front(); }
  const Evidence& evidence(std::size_t objective) const { return *evidence_[objective]; }
  const std::vector<Trial>& trials(std::size_t objective) const { return trials_[objective]; }
  std::vector<Config> front() const {
    std::vector<Config> configs;
    for (const std::size_t i : front_) configs.push_back(configs_[i]);
    return configs;
  }
  std::vector<Scores> front_scores() const {
    std::vector<Scores> scores;
    for (const std::size_t i : front_) scores.push_back(scores_[i]);
    return scores;
  }
  const std::vector<Config>& ran() const { return configs_; }

  std::vector<Posterior> posteriors(const Config& config) const {
    std::vector<Posterior> all;
    for (const auto& evidence : evidence_) all.push_back(judge(evidence->beliefs(), config).speed);
    return all;
  }
  Scores means(const Config& config) const {
    Scores scores;
    for (const Posterior& posterior : posteriors(config)) scores.push_back(posterior.mean);
    return scores;
  }
  void pretend(std::span<const Trial> pending) {
    for (const auto& evidence : evidence_) evidence->pretend(pending);
  }

 private:
  // A trial that lacks a figure does not lead.
  bool knows(const Config& config) const {
    return fitted() &&
           std::all_of(evidence_.begin(), evidence_.end(), [&](const auto& e) { return e->has_run(config); });
  }

  NoBelief no_belief_;
  std::vector<std::vector<Trial>> trials_;
  std::vector<std::unique_ptr<Evidence>> evidence_;  // by objective
  std::vector<Config> configs_;                      // that ran
  std::vector<Scores> scores_;                       // of them
  std::vector<std::size_t> front_;
};

Scores reference_of(std::span<const Scores> front) {
  Scores worst = front.front(), best = front.front();
  for (const Scores& scores : front) {
    for (std::size_t i = 0; i < worst.size(); ++i) {
      worst[i] = std::min(worst[i], scores[i]);
      best[i] = std::max(best[i], scores[i]);
    }
  }
  for (std::size_t i = 0; i < worst.size(); ++i) worst[i] -= kBeyond * std::max(best[i] - worst[i], kLeastExtent);
  return worst;
}

// Looks for the configuration with the largest expected gain in hypervolume.
class FrontSearch {
 public:
  FrontSearch(const Space& space, const Models& models, std::vector<Config> exclude, std::uint64_t seed,
              std::span<const Trial> pending)
      : space_(space), models_(models), exclude_(std::move(exclude)), random_(seed), front_(models.front_scores()) {
    for (const Trial& trial : pending) front_.push_back(models.means(trial.config));
    reference_ = reference_of(front_);
    std::vector<Scores> kept;
    for (const std::size_t i : front_of(front_)) kept.push_back(front_[i]);
    front_ = std::move(kept);
    std::normal_distribution<double> normal;
    for (int i = 0; i < kDraws; ++i) {  // with their mirror images: the mean of the draws is exact
      Scores draw;
      for (std::size_t k = 0; k < reference_.size(); ++k)
        draw.push_back(i % 2 == 0 ? normal(random_) : -draws_.back()[k]);
      draws_.push_back(std::move(draw));
    }
  }

  std::optional<Config> run() {
    std::vector<std::pair<double, Config>> sampled;
    for (int i = 0; i < kRandomCandidates; ++i) {
      Config config = space_.sample(random_);
      const double gain = consider(config);
      sampled.emplace_back(gain, std::move(config));
    }
    std::stable_sort(sampled.begin(), sampled.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
    for (std::size_t i = 0; i < std::min<std::size_t>(kStarts, sampled.size()); ++i) climb(sampled[i].second);
    for (const Config& member : models_.front()) climb(member);
    return best_;
  }

  double gain() const { return best_gain_; }
  double runs() const { return best_runs_; }

 private:
  double consider(const Config& config) {
    if (std::find(exclude_.begin(), exclude_.end(), config) != exclude_.end()) return -2;
    const double runs = judge(models_.first().beliefs(), config).runs;
    double gain = runs - 1;  // below whatever runs
    if (runs >= kLeastRuns) gain = runs * expected_gain(config);
    if (!best_ || gain > best_gain_) {
      best_ = config;
      best_gain_ = gain;
      best_runs_ = runs;
    }
    return gain;
  }

  double expected_gain(const Config& config) const {
    const std::vector<Posterior> posteriors = models_.posteriors(config);
    double sum = 0;
    Scores scores(posteriors.size());
    for (const Scores& draw : draws_) {
      for (std::size_t i = 0; i < scores.size(); ++i)
        scores[i] = posteriors[i].mean + std::sqrt(posteriors[i].variance) * draw[i];
      sum += hypervolume_gain(front_, scores, reference_);
    }
    return sum / static_cast<double>(draws_.size());
  }

  void climb(Config from) {
    double here = consider(from);
    for (int step = 0; step < kClimbs; ++step) {
      std::optional<Config> better;
      for (Config& neighbour : space_.neighbours(from)) {
        const double gain = consider(neighbour);
        if (gain <= here) continue;
        here = gain;
        better = std::move(neighbour);
      }
      if (!better) return;
      from = std::move(*better);
    }
  }

  const Space& space_;
  const Models& models_;
  const std::vector<Config> exclude_;
  Random random_;
  std::vector<Scores> front_;
  Scores reference_;
  std::vector<Scores> draws_;
  std::optional<Config> best_;
  double best_gain_ = 0, best_runs_ = 0;
};

std::int64_t fresh_launches(const StrategyOptions& options, std::int64_t trials) {
  if (options.confirmations >= 0) return std::min(options.confirmations, trials / 3);
  return trials < kFewestForFresh ? 0 : trials / 5;
}

std::int64_t count(std::span<const Trial> trials, Purpose purpose, const Config* config = nullptr) {
  return std::count_if(trials.begin(), trials.end(), [&](const Trial& trial) {
    return trial.purpose == purpose && (config == nullptr || trial.config == *config);
  });
}

// Members that are worth a fresh launch, the one that adds most to the volume first.
std::vector<Config> worth_launching(const Models& models, std::int64_t launches) {
  const std::vector<Config> configs = models.front();
  const std::vector<Scores> scores = models.front_scores();
  if (scores.empty()) return {};
  const Scores reference = reference_of(scores);
  std::vector<std::pair<double, std::size_t>> order;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    std::vector<Scores> others(scores);
    others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
    order.emplace_back(-hypervolume_gain(others, scores[i], reference), i);
  }
  std::sort(order.begin(), order.end());
  std::vector<Config> chosen;
  for (const auto& [gain, i] : order)
    if (static_cast<std::int64_t>(chosen.size()) < launches) chosen.push_back(configs[i]);
  return chosen;
}

// In rounds, so that a machine that drifts favours none.
std::optional<Proposal> next_fresh(const Models& models, std::span<const Trial> all, std::int64_t launches,
                                   Proposal proposal) {
  if (count(all, Purpose::kConfirm) >= launches) return std::nullopt;
  const std::vector<Config> members = worth_launching(models, launches);
  if (members.empty()) return std::nullopt;
  const auto least = std::min_element(members.begin(), members.end(), [&](const Config& a, const Config& b) {
    return count(all, Purpose::kConfirm, &a) < count(all, Purpose::kConfirm, &b);
  });
  proposal.config = *least;
  proposal.purpose = Purpose::kConfirm;
  proposal.reason = "a member of the front, on a fresh launch";
  return proposal;
}

// nullopt: enough is known for the models, or nothing is left.
std::optional<Proposal> next_filling(const Space& space, const Models& models, std::span<const Trial> all,
                                     AcquisitionOptions acquisition, std::int64_t trials, Proposal proposal) {
  const std::int64_t wanted = std::clamp<std::int64_t>(trials / 6, std::min(kFewestFilling, trials / 3), kMostFilling);
  if (models.fitted() && static_cast<std::int64_t>(models.ran().size()) >= wanted) return std::nullopt;
  if (models.fitted() && static_cast<std::int64_t>(all.size()) >= 2 * wanted) return std::nullopt;
  std::vector<std::vector<double>> tried;
  for (const Trial& trial : all) {
    tried.push_back(space.coordinates(trial.config));
    acquisition.exclude.push_back(trial.config);
  }
  const std::optional<Candidate> unlike = spread_out(models.first().beliefs(), acquisition, tried);
  if (!unlike) return std::nullopt;
  proposal.config = unlike->config;
  proposal.reason = fmt::format("unlike all that was tried; runs with probability {:.2f}", unlike->runs);
  return proposal;
}

// From fresh launches, else from the model.
Estimate estimate_of(const Objective& objective, const std::vector<Trial>& trials, const Evidence& evidence,
                     const Config& config, bool& provisional) {
  PooledSpread spread = launch_spread(trials);
  if (spread.degrees_of_freedom < kFewDegrees)
    spread = merge(spread, {evidence.beliefs().speed->noise_variance(), kFewDegrees - spread.degrees_of_freedom});
  std::vector<double> launches;
  for (const Trial& trial : trials)
    if (measured(trial) && trial.config == config && trial.purpose == Purpose::kConfirm)
      launches.push_back(trial.throughput);
  provisional = launches.empty();
  const Posterior posterior = judge(evidence.beliefs(), config).speed;
  const LogEstimate log =
      provisional ? LogEstimate{posterior.mean, posterior.variance, INFINITY} : log_mean(launches, spread);
  const double half = log.half_width(), middle = objective.largest ? log.mean : -log.mean;
  return {std::exp(middle), std::exp(middle - half), std::exp(middle + half),
          static_cast<std::int64_t>(launches.size())};
}

// By the figures that are reported, fresh ones against fresh ones.
void drop_beaten(Front& front) {
  std::vector<Scores> scores;
  for (const Front::Point& point : front.points) {
    scores.emplace_back();
    for (std::size_t i = 0; i < point.values.size(); ++i)
      scores.back().push_back(front.objectives[i].largest ? point.values[i].value : -point.values[i].value);
  }
  std::vector<Front::Point> kept;
  for (std::size_t i = 0; i < scores.size(); ++i) {
    bool beaten = false;
    for (std::size_t j = 0; j < scores.size(); ++j)
      beaten =
          beaten || (front.points[i].provisional == front.points[j].provisional && dominates(scores[j], scores[i]));
    if (!beaten) kept.push_back(front.points[i]);
  }
  front.points = std::move(kept);
}

}  // namespace

std::optional<Proposal> next_for_front(const Space& space, const StrategyOptions& options,
                                       std::span<const Trial> history, std::span<const Trial> pending) {
  std::vector<Trial> all(history.begin(), history.end());
  all.insert(all.end(), pending.begin(), pending.end());
  const auto made = static_cast<std::int64_t>(all.size());
  const std::int64_t affordable = affordable_trials(options, history);
  if (made >= affordable) return std::nullopt;
  Proposal proposal;
  proposal.budget_seconds = options.trial_seconds;
  if (space.has_default() && count(all, Purpose::kBaseline) == 0) {
    proposal.config = space.default_config();
    proposal.purpose = Purpose::kBaseline;
    proposal.reason = "the default, as a baseline";
    return proposal;
  }
  Models models(space, options, history);
  const std::int64_t fresh = fresh_launches(options, affordable);
  if (!models.ran().empty() && (count(all, Purpose::kConfirm) > 0 || made >= affordable - fresh))
    return next_fresh(models, all, fresh, proposal);

  AcquisitionOptions acquisition;
  acquisition.seed = options.seed * 0x9e3779b97f4a7c15ull + static_cast<std::uint64_t>(made);
  acquisition.exclude = models.first().failed();
  for (const Trial& trial : pending) acquisition.exclude.push_back(trial.config);
  if (auto filling = next_filling(space, models, all, acquisition, affordable - fresh, proposal)) return filling;
  if (models.ran().empty()) return std::nullopt;
  for (const Config& config : models.ran()) acquisition.exclude.push_back(config);
  models.pretend(pending);
  FrontSearch search(space, models, acquisition.exclude, acquisition.seed, pending);
  const std::optional<Config> best = search.run();
  if (!best) return next_fresh(models, all, affordable - made + count(all, Purpose::kConfirm), proposal);
  proposal.config = *best;
  proposal.reason =
      fmt::format("may widen the front of {}; runs with probability {:.2f}", models.front().size(), search.runs());
  return proposal;
}

Front find_front(const Space& space, const StrategyOptions& options, std::span<const Trial> history) {
  const Models models(space, options, history);
  Front front;
  front.objectives = options.objectives;
  for (const Config& config : models.front()) {
    Front::Point point{config, {}, false};
    for (std::size_t i = 0; i < options.objectives.size(); ++i) {
      bool provisional = false;
      point.values.push_back(
          estimate_of(options.objectives[i], models.trials(i), models.evidence(i), config, provisional));
      point.provisional = point.provisional || provisional;
    }
    front.points.push_back(std::move(point));
  }
  drop_beaten(front);
  std::stable_sort(front.points.begin(), front.points.end(),
                   [](const auto& a, const auto& b) { return a.values[0].value > b.values[0].value; });
  return front;
}

std::optional<Config> fastest_of_front(const Space& space, const StrategyOptions& options,
                                       std::span<const Trial> history) {
  const Front front = find_front(space, options, history);
  if (front.points.empty()) return std::nullopt;
  return front.points.front().config;
}

nlohmann::json to_json(const Front& front, const Space& space) {
  nlohmann::json document{{"objectives", nlohmann::json::array()}, {"points", nlohmann::json::array()}};
  for (const Objective& objective : front.objectives)
    document["objectives"].push_back({{"name", objective.name}, {"better", objective.largest ? "larger" : "smaller"}});
  for (const Front::Point& point : front.points) {
    nlohmann::json values = nlohmann::json::object();
    for (std::size_t i = 0; i < point.values.size(); ++i) {
      const Estimate& value = point.values[i];
      values[front.objectives[i].name] = {
          {"value", value.value}, {"low", value.low}, {"high", value.high}, {"launches", value.launches}};
    }
    document["points"].push_back(
        {{"config", space.to_json(point.config)}, {"provisional", point.provisional}, {"values", std::move(values)}});
  }
  return document;
}

}  // namespace lockstep::tune
