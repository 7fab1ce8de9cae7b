// Interactions between pairs of knobs.
#include <cmath>

#include "lockstep/tune/importance/space.h"

namespace lockstep::tune {
namespace {

constexpr std::size_t kQuadsOfMean = 16;  // per pair of knobs
constexpr std::size_t kQuadsOfDraws = 14;
constexpr std::size_t kPairsDrawn = 4;
constexpr double kStandsOut = 1.0;  // percent of the variance

double double_difference(const Quad& quad) {
  return quad[0].speed.mean - quad[1].speed.mean - quad[2].speed.mean + quad[3].speed.mean;
}

struct Pair {
  std::size_t first = 0, second = 0;
  double strength = 0;  // of the mean
};

// The strongest pairs by the mean alone.
std::vector<Pair> strongest_pairs(SpaceView& view) {
  std::vector<Pair> pairs;
  for (std::size_t first = 0; first < view.space().size(); ++first)
    for (std::size_t second = first + 1; second < view.space().size(); ++second) {
      Moments squares;
      for (std::size_t q = 0; q < kQuadsOfMean; ++q) {
        const auto quad = view.quad(first, second);
        if (!quad) break;
        const double difference = double_difference(*quad);
        squares.add(1, difference * difference / 4);
      }
      pairs.push_back({first, second, squares.mean()});
    }
  std::stable_sort(pairs.begin(), pairs.end(), [](const Pair& a, const Pair& b) { return a.strength > b.strength; });
  if (pairs.size() > kPairsDrawn) pairs.resize(kPairsDrawn);
  return pairs;
}

}  // namespace

// Superset importance of a pair (Liu and Owen 2006): a quarter of the mean square of double differences.
std::vector<Interaction> interactions_of(const Beliefs& beliefs, SpaceView& view, double variance, std::uint64_t seed) {
  std::vector<Interaction> found;
  for (const Pair& pair : strongest_pairs(view)) {
    if (100 * pair.strength < kStandsOut * variance) continue;
    std::vector<Quad> quads;
    for (std::size_t q = 0; q < kQuadsOfDraws; ++q)
      if (auto quad = view.quad(pair.first, pair.second)) quads.push_back(std::move(*quad));
    std::vector<const Candidate*> points;
    for (const auto& quad : quads)
      for (const Candidate& corner : quad) points.push_back(&corner);
    if (points.empty()) continue;
    const Draws draws = difference_draws(beliefs, points, seed);
    Draws shares{1, {}};
    for (std::size_t draw = 0; draw < draws.count(); ++draw) {
      Moments squares;
      for (std::size_t q = 0; q < quads.size(); ++q) {
        const auto delta = draws[draw].subspan(4 * q, 4);
        const double difference = double_difference(quads[q]) + delta[0] - delta[1] - delta[2] + delta[3];
        squares.add(1, difference * difference / 4);
      }
      shares.values.push_back(std::min(100.0, 100 * squares.mean() / variance));
    }
    Estimate estimate = shares.estimate(0);
    // Draws of a square exceed that of the mean by the uncertainty; that alone is not an interaction.
    Moments of_mean;
    for (const Quad& quad : quads) of_mean.add(1, std::pow(double_difference(quad), 2) / 4);
    estimate.low = std::max(0.0, estimate.low - std::max(0.0, estimate.value - 100 * of_mean.mean() / variance));
    if (estimate.low < kStandsOut) continue;
    const auto& knobs = view.space().knobs();
    found.push_back({knobs[pair.first].name, knobs[pair.second].name, estimate});
  }
  std::stable_sort(found.begin(), found.end(), [](const Interaction& a, const Interaction& b) {
    return a.variance_percent.value > b.variance_percent.value;
  });
  return found;
}

}  // namespace lockstep::tune
