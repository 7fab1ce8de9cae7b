#include "lockstep/tune/importance/space.h"

#include <cmath>
#include <random>

#include "lockstep/base/error.h"

namespace lockstep::tune {
namespace {

constexpr std::size_t kSample = 1200;
constexpr std::size_t kMostLevels = 12;

double number(const Value& value) {
  if (const auto* integer = std::get_if<std::int64_t>(&value)) return static_cast<double>(*integer);
  if (const auto* real = std::get_if<double>(&value)) return *real;
  return 0;
}

// A covariance that is a sum of differences can miss being positive definite by rounding.
Matrix factor_of(const Matrix& covariance) {
  for (double jitter = 1e-8; jitter < 1; jitter *= 10) {
    Matrix factor = covariance;
    for (std::size_t i = 0; i < factor.size; ++i) factor(i, i) += jitter;
    if (cholesky_in_place(factor)) return factor;
  }
  LOCKSTEP_ASSERT(false, "the posterior covariance over the space is positive definite");
  return covariance;
}

}  // namespace

SpaceView::SpaceView(const Beliefs& beliefs, std::uint64_t seed) : beliefs_(beliefs), random_(seed) {
  for (std::size_t i = 0; i < kSample; ++i) sample_.push_back(judge(beliefs, space().sample(random_)));
  for (std::size_t knob = 0; knob < space().size(); ++knob) levels_.push_back(levels_of(knob));
}

std::optional<std::size_t> SpaceView::level_of(std::size_t knob, const Config& config) const {
  const Value& value = config.values[knob];
  const auto& all = levels_[knob];
  const auto found = std::find(all.begin(), all.end(), value);
  if (found != all.end()) return static_cast<std::size_t>(found - all.begin());
  if (!is_active(value) || all.empty()) return std::nullopt;
  std::size_t nearest = 0;
  for (std::size_t i = 1; i < all.size(); ++i)
    if (std::abs(number(all[i]) - number(value)) < std::abs(number(all[nearest]) - number(value))) nearest = i;
  return nearest;
}

Row SpaceView::row(std::size_t knob) {
  Config config = draw().config;
  Row row;
  for (std::size_t level = 0; level < levels(knob); ++level) {
    config.values[knob] = levels_[knob][level];
    if (space().is_valid(config)) row.push_back({judge(beliefs_, config), level});
  }
  return row;
}

std::optional<Quad> SpaceView::quad(std::size_t first, std::size_t second) {
  if (levels(first) == 0 || levels(second) == 0) return std::nullopt;
  for (int attempt = 0; attempt < 12; ++attempt) {
    const Candidate& base = draw();
    if (!is_active(base.config.values[first]) || !is_active(base.config.values[second])) continue;
    Config one = base.config, other = base.config;
    one.values[first] = levels_[first][random_() % levels(first)];
    other.values[second] = levels_[second][random_() % levels(second)];
    Config both = one;
    both.values[second] = other.values[second];
    if (!space().is_valid(one) || !space().is_valid(other) || !space().is_valid(both)) continue;
    return Quad{base, judge(beliefs_, one), judge(beliefs_, other), judge(beliefs_, both)};
  }
  return std::nullopt;
}

// All levels where they are few, else some spread evenly over those drawn.
std::vector<Value> SpaceView::levels_of(std::size_t knob) const {
  if (space().knobs()[knob].kind == KnobKind::kChoice) return space().knobs()[knob].choices;
  std::vector<Value> values;
  for (const Candidate& candidate : sample_)
    if (is_active(candidate.config.values[knob])) values.push_back(candidate.config.values[knob]);
  std::sort(values.begin(), values.end());
  std::vector<Value> distinct = values;
  distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
  if (distinct.size() <= 2 * kMostLevels) return distinct;
  std::vector<Value> spread;
  for (std::size_t i = 0; i < kMostLevels; ++i)
    spread.push_back(values[(2 * i + 1) * values.size() / (2 * kMostLevels)]);
  spread.erase(std::unique(spread.begin(), spread.end()), spread.end());
  return spread;
}

Draws difference_draws(const Beliefs& beliefs, const std::vector<const Candidate*>& points, std::uint64_t seed) {
  std::vector<std::vector<double>> coordinates;
  std::vector<double> priors;
  for (const Candidate* point : points) {
    coordinates.push_back(point->coordinates);
    priors.push_back(point->prior_log_throughput);
  }
  const Matrix factor = factor_of(beliefs.speed->predict_jointly(coordinates, priors).covariance);
  Random random(seed);
  std::normal_distribution<double> normal;
  Draws draws{points.size(), std::vector<double>(points.size() * kFunctionDraws, 0.0)};
  std::vector<double> z(points.size());
  for (std::size_t draw = 0; draw < kFunctionDraws; ++draw) {
    for (double& value : z) value = normal(random);
    for (std::size_t i = 0; i < points.size(); ++i) {
      const double* row = factor.row(i);
      double sum = 0;
      for (std::size_t j = 0; j <= i; ++j) sum += row[j] * z[j];
      draws.values[draw * points.size() + i] = sum;
    }
  }
  return draws;
}

}  // namespace lockstep::tune
