#include "lockstep/tune/acquisition.h"

#include <algorithm>
#include <cmath>

namespace lockstep::tune {
namespace {

constexpr int kRandomCandidates = 400;
constexpr int kRandomStarts = 4;
constexpr int kClimbs = 6;

double score_of(const Candidate& candidate, const AcquisitionOptions& options, bool speed_known) {
  if (!speed_known) return candidate.runs;
  const double gain = options.exploration > 0 ? expected_improvement(candidate.speed, options.incumbent)
                                              : std::exp(candidate.speed.mean - options.incumbent);
  // What is below the floor of probability is ordered by probability, below everything else.
  if (candidate.runs < options.least_probability) return candidate.runs - 1.0;
  return gain * candidate.runs;
}

class Search {
 public:
  Search(const Beliefs& beliefs, const AcquisitionOptions& options) : beliefs_(beliefs), options_(options) {}

  // Judges the configuration and keeps it when it is the best so far. Returns its score.
  double consider(const Config& config) {
    if (std::find(options_.exclude.begin(), options_.exclude.end(), config) != options_.exclude.end()) return -10;
    Candidate candidate = judge(beliefs_, config);
    candidate.score = score_of(candidate, options_, beliefs_.speed.has_value());
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

  std::optional<Candidate> best() && { return std::move(best_); }

 private:
  const Beliefs& beliefs_;
  const AcquisitionOptions& options_;
  std::optional<Candidate> best_;
};

}  // namespace

double expected_improvement(const Posterior& posterior, double incumbent) {
  const double deviation = std::sqrt(posterior.variance);
  const double z = (posterior.mean - incumbent) / deviation;
  const double density = std::exp(-0.5 * z * z) / std::sqrt(2 * 3.14159265358979);
  const double cumulative = 0.5 * std::erfc(-z / std::sqrt(2.0));
  return deviation * (z * cumulative + density);
}

Candidate judge(const Beliefs& beliefs, Config config) {
  Candidate candidate;
  candidate.coordinates = beliefs.space->coordinates(config);
  candidate.config = std::move(config);
  if (beliefs.prior != nullptr) {
    if (const std::optional<Belief> belief = (*beliefs.prior)(candidate.config)) {
      candidate.prior_log_throughput = belief->log_throughput - beliefs.prior_reference;
      candidate.prior_fits = belief->fits_probability;
    }
  }
  candidate.runs = beliefs.feasibility->probability(candidate.coordinates, candidate.prior_fits);
  if (beliefs.speed) candidate.speed = beliefs.speed->predict(candidate.coordinates, candidate.prior_log_throughput);
  return candidate;
}

std::optional<Candidate> most_promising(const Beliefs& beliefs, const AcquisitionOptions& options) {
  Random random(options.seed);
  Search search(beliefs, options);
  std::vector<std::pair<double, Config>> sampled;
  for (int i = 0; i < kRandomCandidates; ++i) {
    Config config = beliefs.space->sample(random);
    const double score = search.consider(config);
    sampled.emplace_back(score, std::move(config));
  }
  const std::size_t starts = std::min<std::size_t>(kRandomStarts, sampled.size());
  std::partial_sort(sampled.begin(), sampled.begin() + static_cast<std::ptrdiff_t>(starts), sampled.end(),
                    [](const auto& a, const auto& b) { return a.first > b.first; });
  for (std::size_t i = 0; i < starts; ++i) search.climb(sampled[i].second);
  for (const Config& start : options.starts) search.climb(start);
  std::optional<Candidate> best = std::move(search).best();
  if (best && best->score <= -10) return std::nullopt;
  return best;
}

}  // namespace lockstep::tune
