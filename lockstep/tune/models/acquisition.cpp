#include "lockstep/tune/models/acquisition.h"

#include <algorithm>
#include <cmath>

namespace lockstep::tune {
namespace {

constexpr int kRandomCandidates = 500;
constexpr int kRandomStarts = 5;
constexpr int kClimbs = 6;
constexpr double kChoiceDistance = 0.7, kRestDistance = 0.5;  // where a whole range is 1
constexpr double kLikely = 0.6;  // of running: surer is no better while the edge is unknown

// Expected gain: improvement of the logarithm, or throughput itself when exploiting.
double gain_of(const Candidate& candidate, const AcquisitionOptions& options, const Beliefs& beliefs) {
  if (!beliefs.speed) return 1.0;
  if (options.exploration > 0)
    return beliefs.speed->expected_improvement(candidate.coordinates, options.incumbent,
                                               candidate.prior_log_throughput, options.exploration);
  return std::exp(candidate.speed.mean - options.incumbent);
}

// Local search by a score that counts only what runs with at least the least probability; what is below is ordered by
// probability, under everything else.
class Search {
 public:
  Search(const Beliefs& beliefs, const AcquisitionOptions& options) : beliefs_(beliefs), options_(options) {}

  double consider(const Config& config) {
    if (std::find(options_.exclude.begin(), options_.exclude.end(), config) != options_.exclude.end()) return -10;
    return consider(judge(beliefs_, config));
  }

  double consider(Candidate candidate) {
    candidate.score = candidate.runs < options_.least_probability
                          ? candidate.runs - 1.0
                          : gain_of(candidate, options_, beliefs_) * std::pow(candidate.runs, options_.caution);
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
  for (const Candidate& candidate : sampled) scores.emplace_back(search.consider(candidate), &candidate.config);
  const std::size_t starts = std::min<std::size_t>(kRandomStarts, scores.size());
  std::partial_sort(scores.begin(), scores.begin() + static_cast<std::ptrdiff_t>(starts), scores.end(),
                    [](const auto& a, const auto& b) { return a.first > b.first; });
  for (std::size_t i = 0; i < starts; ++i) search.climb(*scores[i].second);
  for (const Config& start : options.starts) search.climb(start);
  return search.best();
}

std::vector<Candidate> sample(const Beliefs& beliefs, const AcquisitionOptions& options) {
  Random random(options.seed);
  std::vector<Candidate> sampled;
  for (int i = 0; i < kRandomCandidates; ++i) {
    Config config = beliefs.space->sample(random);
    if (std::find(options.exclude.begin(), options.exclude.end(), config) != options.exclude.end()) continue;
    sampled.push_back(judge(beliefs, std::move(config)));
  }
  return sampled;
}

double distance(const Space& space, std::span<const double> x, std::span<const double> y) {
  double sum = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i]) && std::isnan(y[i])) continue;
    const bool rests = std::isnan(x[i]) || std::isnan(y[i]);
    const double gap = rests ? kRestDistance : space.knobs()[i].ordered ? x[i] - y[i] : x[i] == y[i] ? 0 : kChoiceDistance;
    sum += gap * gap;
  }
  return std::sqrt(sum);
}

}  // namespace

std::optional<Candidate> farthest(const Beliefs& beliefs, const AcquisitionOptions& options,
                                  std::span<const std::vector<double>> tried) {
  std::optional<Candidate> best;
  for (Candidate& candidate : sample(beliefs, options)) {
    double nearest = tried.empty() ? 1 : INFINITY;
    for (const std::vector<double>& other : tried)
      nearest = std::min(nearest, distance(*beliefs.space, candidate.coordinates, other));
    candidate.score = nearest * std::min(1.0, candidate.runs / kLikely);
    if (!best || candidate.score > best->score) best = std::move(candidate);
  }
  return best;
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
  if (beliefs.sketch != nullptr)
    candidate.prior_log_throughput = beliefs.sketch->log_throughput(candidate.config) - beliefs.prior_reference;
  const bool ran = beliefs.ran != nullptr &&
                   std::find(beliefs.ran->begin(), beliefs.ran->end(), candidate.config) != beliefs.ran->end();
  candidate.runs =
      ran ? 1.0 : beliefs.feasibility->probability(candidate.config, candidate.coordinates, candidate.prior_fits);
  if (beliefs.speed) candidate.speed = beliefs.speed->predict(candidate.coordinates, candidate.prior_log_throughput);
  return candidate;
}

std::optional<Candidate> most_promising(const Beliefs& beliefs, const AcquisitionOptions& options) {
  const std::vector<Candidate> sampled = sample(beliefs, options);
  return search(beliefs, options, sampled);
}

}  // namespace lockstep::tune
