#include "lockstep/tune/models/acquisition.h"

#include <algorithm>
#include <cmath>

namespace lockstep::tune {
namespace {

constexpr int kRandomCandidates = 500;
constexpr int kRandomStarts = 5;
constexpr int kClimbs = 6;
constexpr double kCrowdingWidth = 0.15;  // of a knob's range
constexpr double kLikely = 0.4;          // of running: surer is no better while the edge is unknown

Candidate judge_running(const Beliefs& beliefs, Config config) {
  Candidate candidate;
  candidate.coordinates = beliefs.space->coordinates(config);
  candidate.config = std::move(config);
  if (beliefs.prior != nullptr) {
    if (const std::optional<Belief> belief = (*beliefs.prior)(candidate.config)) {
      candidate.prior_log_throughput = belief->log_throughput - beliefs.prior_reference;
      candidate.prior_fits = belief->fits_probability;
    }
  }
  if (beliefs.sketch != nullptr)
    candidate.prior_log_throughput = beliefs.sketch->log_throughput(candidate.config) - beliefs.prior_reference;
  const bool ran = beliefs.ran != nullptr &&
                   std::find(beliefs.ran->begin(), beliefs.ran->end(), candidate.config) != beliefs.ran->end();
  candidate.runs =
      ran ? 1.0 : beliefs.feasibility->probability(candidate.config, candidate.coordinates, candidate.prior_fits);
  return candidate;
}

void judge_speed(const Beliefs& beliefs, double incumbent, Candidate& candidate) {
  if (!beliefs.speed) return;
  const Surrogate::Judgement told =
      beliefs.speed->judge(candidate.coordinates, incumbent, candidate.prior_log_throughput);
  candidate.speed = told.posterior;
  candidate.improvement = told.improvement;
}

// Local search by a score that counts only what runs with at least the least probability; what is below is ordered by
// probability, under everything else.
class Search {
 public:
  Search(const Beliefs& beliefs, const AcquisitionOptions& options) : beliefs_(beliefs), options_(options) {}

  double consider(const Config& config) {
    if (std::find(options_.exclude.begin(), options_.exclude.end(), config) != options_.exclude.end()) return -10;
    Candidate candidate = judge_running(beliefs_, config);
    if (candidate.runs >= options_.least_probability || !best_) judge_speed(beliefs_, options_.incumbent, candidate);
    return consider(std::move(candidate));
  }

  double consider(Candidate candidate) {
    candidate.score = candidate.runs < options_.least_probability
                          ? candidate.runs - 1.0
                          : (beliefs_.speed ? candidate.improvement : 1.0) * std::pow(candidate.runs, options_.caution);
    const double score = candidate.score;
    if (!best_ || score > best_->score) best_ = std::move(candidate);
    return score;
  }

  void climb(Config from) {
    double here = consider(from);
    for (int step = 0; step < kClimbs; ++step) {
      std::optional<Config> better;
      for (Config& neighbour : beliefs_.space->neighbours(from)) {
        const double score = consider(neighbour);
        if (score > here) {
          here = score;
          better = std::move(neighbour);
        }
      }
      if (!better) return;
      from = std::move(*better);
    }
  }

  const std::optional<Candidate>& best() const { return best_; }

 private:
  const Beliefs& beliefs_;
  const AcquisitionOptions& options_;
  std::optional<Candidate> best_;
};

std::optional<Candidate> search(const Beliefs& beliefs, const AcquisitionOptions& options,
                                const std::vector<Candidate>& sampled) {
  Search search(beliefs, options);
  std::vector<std::pair<double, const Config*>> scores;
  scores.reserve(sampled.size());
  for (const Candidate& candidate : sampled) scores.emplace_back(search.consider(candidate), &candidate.config);
  const std::size_t starts = std::min<std::size_t>(kRandomStarts, scores.size());
  std::partial_sort(scores.begin(), scores.begin() + static_cast<std::ptrdiff_t>(starts), scores.end(),
                    [](const auto& a, const auto& b) { return a.first > b.first; });
  for (std::size_t i = 0; i < starts; ++i) search.climb(*scores[i].second);
  for (const Config& start : options.starts) search.climb(start);
  return search.best();
}

std::vector<Candidate> sample(const Beliefs& beliefs, const AcquisitionOptions& options, bool speed) {
  Random random(options.seed);
  std::vector<Candidate> sampled;
  for (int i = 0; i < kRandomCandidates; ++i) {
    Config config = beliefs.space->sample(random);
    if (std::find(options.exclude.begin(), options.exclude.end(), config) != options.exclude.end()) continue;
    Candidate& candidate = sampled.emplace_back(judge_running(beliefs, std::move(config)));
    if (speed) judge_speed(beliefs, options.incumbent, candidate);
  }
  return sampled;
}

// Where each of some configurations stands among them all, knob by knob: the share of them that have less, so that a
// knob's values are as far apart as they are often drawn. Words and knobs at rest: the value itself.
class Ranks {
 public:
  explicit Ranks(const Space& space, std::span<const Candidate> sampled) : space_(&space), sorted_(space.size()) {
    for (std::size_t knob = 0; knob < space.size(); ++knob) {
      if (!space.knobs()[knob].ordered) continue;
      for (const Candidate& candidate : sampled)
        if (!std::isnan(candidate.coordinates[knob])) sorted_[knob].push_back(candidate.coordinates[knob]);
      std::sort(sorted_[knob].begin(), sorted_[knob].end());
    }
  }

  std::vector<double> of(std::span<const double> coordinates) const {
    std::vector<double> ranks(coordinates.begin(), coordinates.end());
    for (std::size_t knob = 0; knob < ranks.size(); ++knob) {
      const std::vector<double>& sorted = sorted_[knob];
      if (sorted.empty() || std::isnan(ranks[knob])) continue;
      const auto [low, high] = std::equal_range(sorted.begin(), sorted.end(), ranks[knob]);
      ranks[knob] = 0.5 * static_cast<double>((low - sorted.begin()) + (high - sorted.begin())) /
                    static_cast<double>(sorted.size());
    }
    return ranks;
  }

  // How much two stand in each other's way: mean over the knobs. What lies beyond an end is mirrored, so that the ends
  // are no emptier than the middle.
  double crowding(std::span<const double> x, std::span<const double> y) const {
    double sum = 0;
    for (std::size_t knob = 0; knob < x.size(); ++knob) {
      if (std::isnan(x[knob]) || std::isnan(y[knob])) {
        sum += std::isnan(x[knob]) && std::isnan(y[knob]) ? 1 : 0;
      } else if (!space_->knobs()[knob].ordered) {
        sum += x[knob] == y[knob] ? 1 : 0;
      } else {
        const double sums = x[knob] + y[knob];
        sum += near(x[knob] - y[knob]) + near(sums) + near(2 - sums);
      }
    }
    return sum / static_cast<double>(x.size());
  }

 private:
  static double near(double gap) { return std::exp(-gap * gap / (2 * kCrowdingWidth * kCrowdingWidth)); }

  const Space* space_;
  std::vector<std::vector<double>> sorted_;
};

}  // namespace

std::optional<Candidate> spread_out(const Beliefs& beliefs, const AcquisitionOptions& options,
                                    std::span<const std::vector<double>> tried) {
  std::vector<Candidate> sampled = sample(beliefs, options, false);
  const Ranks ranks(*beliefs.space, sampled);
  std::vector<std::vector<double>> others;
  for (const std::vector<double>& other : tried) others.push_back(ranks.of(other));
  std::optional<Candidate> best;
  for (Candidate& candidate : sampled) {
    const std::vector<double> here = ranks.of(candidate.coordinates);
    double crowding = 0;
    for (const std::vector<double>& other : others) crowding += ranks.crowding(here, other);
    candidate.score = std::min(1.0, candidate.runs / kLikely) * std::exp(-crowding);
    if (!best || candidate.score > best->score) best = std::move(candidate);
  }
  return best;
}

Candidate judge(const Beliefs& beliefs, Config config) {
  Candidate candidate = judge_running(beliefs, std::move(config));
  judge_speed(beliefs, 0, candidate);
  return candidate;
}

std::optional<Candidate> most_promising(const Beliefs& beliefs, const AcquisitionOptions& options) {
  const std::vector<Candidate> sampled = sample(beliefs, options, true);
  return search(beliefs, options, sampled);
}

}  // namespace lockstep::tune
