#include "lockstep/tune/models/feasibility.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/tune/job/knob_nature.h"

namespace lockstep::tune {
namespace {

// Latent values by unit of a coordinate (the whole range of a knob); 1 is one deviation of the link's noise.
constexpr double kDefaultRuns = 3.5;        // mean at the default configuration
constexpr double kMemorySlope = 5.0;        // loss over the range of a knob that needs memory
constexpr double kMemoryDeviation = 6.0;    // of the slope of a knob whose name says that it needs memory, or nothing
constexpr double kHarmlessDeviation = 0.5;  // of the slope of a knob whose name says that it needs none
constexpr double kLocalDeviation = 1.5;
constexpr double kOtherRuns = 4.5;             // mean of "not invalid"
constexpr double kOtherChoiceDeviation = 2.0;  // of the effect of a choice
constexpr double kOtherSlopeDeviation = 0.3;   // of the slope of an ordered knob: they are rarely invalid
constexpr double kOtherLocalDeviation = 4.0;
constexpr int kSweeps = 6;

double normal_cumulative(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

// Density over cumulative of the normal distribution, safe far into the left tail.
double hazard(double z) {
  if (z < -25) return -z;
  return std::exp(-0.5 * z * z) / std::sqrt(2 * 3.14159265358979) / normal_cumulative(z);
}

struct Site {
  double precision;
  double shift;
};

// The normal site that gives the cavity the moments it has together with "the sign of the latent plus noise is label".
Site match_moments(int label, double cavity_mean, double cavity_variance) {
  const double root = std::sqrt(1 + cavity_variance);
  const double z = label * cavity_mean / root;
  const double ratio = hazard(z);
  const double mean = cavity_mean + label * cavity_variance * ratio / root;
  const double shrink = cavity_variance * ratio * (z + ratio) / (1 + cavity_variance);
  const double variance = std::max(cavity_variance * (1 - shrink), 1e-9);
  return {1 / variance - 1 / cavity_variance, mean / variance - cavity_mean / cavity_variance};
}

}  // namespace

double Feasibility::Classifier::kernel(std::span<const double> x, std::span<const double> y,
                                       std::span<const char> ordered) const {
  double linear = 0;
  double log_local = 0;
  for (std::size_t i = 0; i < ordered.size(); ++i) {
    const double variance = linear_deviation[i] * linear_deviation[i];
    if (ordered[i] != 0) {
      linear += variance * x[i] * y[i];
      log_local -= relevance[i] * (x[i] - y[i]) * (x[i] - y[i]) / (2 * 0.3 * 0.3);
    } else if (x[i] == y[i]) {
      linear += variance;
    } else {
      log_local -= relevance[i] * 1.5;
    }
  }
  return linear + local_deviation * local_deviation * std::exp(log_local);
}

void Feasibility::Classifier::learn(std::span<const std::vector<double>> features, std::span<const int> labels,
                                    std::span<const double> means, std::span<const char> ordered) {
  const std::size_t n = features.size();
  points.assign(features.begin(), features.end());
  Matrix prior(n);
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t c = 0; c <= r; ++c) prior(r, c) = prior(c, r) = kernel(points[r], points[c], ordered);

  // Sites in natural parameters; the posterior is that of prior times sites.
  precisions.assign(n, 0.0);
  std::vector<double> site_shift(n, 0.0), mean(means.begin(), means.end());
  Matrix covariance = prior;
  std::vector<double> column(n);
  for (int sweep = 0; sweep < kSweeps; ++sweep) {
    double change = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double marginal = covariance(i, i);
      const double cavity_precision = std::max(1 / marginal - precisions[i], 1e-9);
      const double cavity_shift = mean[i] / marginal - site_shift[i];
      const Site site = match_moments(labels[i], cavity_shift / cavity_precision, 1 / cavity_precision);
      const double precision = std::max(site.precision, 0.0);
      const double step = precision - precisions[i];
      precisions[i] = precision;
      site_shift[i] = site.shift;
      change = std::max(change, std::fabs(step));
      for (std::size_t r = 0; r < n; ++r) column[r] = covariance(r, i);
      const double scale = step / (1 + step * marginal);
      for (std::size_t r = 0; r < n; ++r)
        for (std::size_t c = 0; c < n; ++c) covariance(r, c) -= scale * column[r] * column[c];
      for (std::size_t r = 0; r < n; ++r) {
        mean[r] = means[r];
        for (std::size_t c = 0; c < n; ++c) mean[r] += covariance(r, c) * (site_shift[c] - precisions[c] * means[c]);
      }
    }
    if (change < 1e-4) break;
  }
  factor = Matrix(n);
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t c = 0; c <= r; ++c)
      factor(r, c) = std::sqrt(precisions[r] * precisions[c]) * prior(r, c) + (r == c ? 1.0 : 0.0);
  LOCKSTEP_ASSERT(cholesky_in_place(factor), "identity plus a covariance is positive definite");
  // inverse(K + inverse(S)) (S^-1 shift - m) = s - sqrt(S) inverse(B) sqrt(S) K s, with s = shift - S m.
  std::vector<double> s(n), half(n);
  for (std::size_t r = 0; r < n; ++r) s[r] = site_shift[r] - precisions[r] * means[r];
  for (std::size_t r = 0; r < n; ++r) {
    for (std::size_t c = 0; c < n; ++c) half[r] += prior(r, c) * s[c];
    half[r] *= std::sqrt(precisions[r]);
  }
  solve_cholesky(factor, half);
  shifts.resize(n);
  for (std::size_t r = 0; r < n; ++r) shifts[r] = s[r] - std::sqrt(precisions[r]) * half[r];
}

double Feasibility::Classifier::probability(std::span<const double> x, double mean,
                                            std::span<const char> ordered) const {
  const std::size_t n = points.size();
  std::vector<double> cross(n);
  double variance = kernel(x, x, ordered);
  for (std::size_t r = 0; r < n; ++r) {
    const double k = kernel(x, points[r], ordered);
    mean += k * shifts[r];
    cross[r] = std::sqrt(precisions[r]) * k;
  }
  solve_lower(factor, cross);
  for (const double value : cross) variance -= value * value;
  return normal_cumulative(mean / std::sqrt(1 + std::max(variance, 0.0)));
}

std::vector<double> Feasibility::features(std::span<const double> coordinates) const {
  std::vector<double> x(coordinates.begin(), coordinates.end());
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (std::isnan(x[i])) x[i] = ordered_[i] != 0 ? default_coordinates_[i] : -1.0;
    if (ordered_[i] != 0) x[i] -= default_coordinates_[i];
  }
  return x;
}

double Feasibility::memory_mean(std::span<const double> coordinates, double prior_fits) const {
  double mean = kDefaultRuns;
  for (std::size_t i = 0; i < ordered_.size(); ++i) {
    if (std::isnan(coordinates[i])) continue;
    mean -= ordered_[i] != 0 ? slopes_[i] * (coordinates[i] - default_coordinates_[i])
                             : choice_losses_[i][static_cast<std::size_t>(coordinates[i])];
  }
  // What the names say is worth little compared with a computed memory.
  const double odds = std::clamp(prior_fits, 0.02, 0.98);
  return 0.3 * std::min(mean, kDefaultRuns) + std::log(odds / (1 - odds));
}

void Feasibility::believe_names(const Space& space) {
  for (std::size_t i = 0; i < space.size(); ++i) {
    const Knob& knob = space.knobs()[i];
    const KnobNature nature = nature_of(knob);
    slopes_.push_back(knob.ordered ? kMemorySlope * nature.memory.value_or(0) : 0.0);
    choice_losses_.emplace_back(knob.choices.size(), 0.0);
    const Value& usual = space.default_config().values[i];
    const std::optional<double> there = is_active(usual) ? memory_of_choice(knob, usual) : std::nullopt;
    for (std::size_t c = 0; c < knob.choices.size(); ++c) {
      const std::optional<double> here = memory_of_choice(knob, knob.choices[c]);
      if (here && there) choice_losses_[i][c] = kMemorySlope * (*here - *there);
    }
    const bool harmless = nature.memory && *nature.memory == 0;
    const double deviation = kMemoryDeviation * (knob.ordered ? 1.0 : 0.5);
    memory_.linear_deviation.push_back(harmless ? kHarmlessDeviation : deviation);
    memory_.relevance.push_back(harmless ? 0.05 : 1.0);
    // Combinations of choices are what is invalid; ordered knobs rarely are.
    other_.linear_deviation.push_back(knob.ordered ? kOtherSlopeDeviation : kOtherChoiceDeviation);
    other_.relevance.push_back(knob.ordered ? 0.1 : 1.0);
  }
}

Feasibility Feasibility::fit(const Space& space, std::span<const FeasibilityPoint> points, bool use_prior) {
  Feasibility model;
  model.use_prior_ = use_prior;
  model.default_coordinates_ = space.coordinates(space.default_config());
  for (std::size_t i = 0; i < space.size(); ++i) {
    const bool ordered = space.knobs()[i].ordered;
    model.ordered_.push_back(ordered ? 1 : 0);
    if (std::isnan(model.default_coordinates_[i])) model.default_coordinates_[i] = ordered ? 0.0 : -1.0;
  }
  model.believe_names(space);
  model.memory_.local_deviation = kLocalDeviation;
  model.other_.local_deviation = kOtherLocalDeviation;

  if (!use_prior) {
    std::vector<MemorySketch::Point> seen;
    for (const FeasibilityPoint& point : points)
      if (point.outcome == Outcome::kMeasured || point.outcome == Outcome::kOutOfMemory)
        seen.push_back({point.config, point.outcome == Outcome::kMeasured});
    model.sketch_.emplace(space, seen);
  }
  std::vector<std::vector<double>> memory_points, other_points;
  std::vector<int> memory_labels, other_labels;
  std::vector<double> memory_means, other_means;
  for (const FeasibilityPoint& point : points) {
    const bool ran = point.outcome == Outcome::kMeasured;
    const bool memory_failed = point.outcome == Outcome::kOutOfMemory;
    const std::vector<double> x = model.features(point.coordinates);
    if (use_prior && (ran || memory_failed)) {
      memory_points.push_back(x);
      memory_labels.push_back(ran ? 1 : -1);
      memory_means.push_back(model.memory_mean(point.coordinates, point.prior_fits_probability));
    }
    // Out of memory also says that the combination was accepted.
    other_points.push_back(x);
    other_labels.push_back(ran || memory_failed ? 1 : -1);
    other_means.push_back(kOtherRuns);
  }
  if (use_prior) model.memory_.learn(memory_points, memory_labels, memory_means, model.ordered_);
  model.other_.learn(other_points, other_labels, other_means, model.ordered_);
  return model;
}

double Feasibility::probability(const Config& config, std::span<const double> coordinates, double prior_fits) const {
  const std::vector<double> x = features(coordinates);
  const double fits =
      sketch_ ? sketch_->fits(config) : memory_.probability(x, memory_mean(coordinates, prior_fits), ordered_);
  return fits * other_.probability(x, kOtherRuns, ordered_);
}

}  // namespace lockstep::tune
