#include "lockstep/tune/feasibility.h"

#include <algorithm>
#include <cmath>

#include "lockstep/tune/knob_nature.h"

namespace lockstep::tune {
namespace {

constexpr double kDefaultRuns = 2.0;       // latent mean at the default configuration: runs with 0.88
constexpr double kOtherRuns = 2.5;         // latent mean of "not invalid"
constexpr double kMemorySlope = 3.5;       // latent loss from the default to the far end of a knob that needs memory
constexpr double kUnknownDeviation = 3.0;  // weight of an ordered knob whose name says nothing
constexpr double kKnownDeviation = 3.0;
constexpr double kSmallDeviation = 0.3;  // knobs whose name says: no memory

double logistic(double x) { return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x)); }
double logit(double p) { return std::log(p / (1 - p)); }

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
  Matrix covariance(n);
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t c = 0; c <= r; ++c) covariance(r, c) = covariance(c, r) = kernel(points[r], points[c], ordered);
  std::vector<double> latent(n, 0.0), a(n), b(n);  // latent: deviation from the mean
  root_weights.assign(n, 0.0);
  gradient.assign(n, 0.0);
  for (int iteration = 0; iteration < 12; ++iteration) {
    factor = Matrix(n);
    for (std::size_t r = 0; r < n; ++r) {
      const double p = logistic(latent[r] + means[r]);
      root_weights[r] = std::sqrt(std::max(p * (1 - p), 1e-9));
      gradient[r] = (labels[r] > 0 ? 1.0 : 0.0) - p;
    }
    for (std::size_t r = 0; r < n; ++r)
      for (std::size_t c = 0; c <= r; ++c)
        factor(r, c) = root_weights[r] * covariance(r, c) * root_weights[c] + (r == c ? 1.0 : 0.0);
    if (!cholesky_in_place(factor)) return;
    for (std::size_t r = 0; r < n; ++r) b[r] = root_weights[r] * root_weights[r] * latent[r] + gradient[r];
    for (std::size_t r = 0; r < n; ++r) {
      a[r] = 0;
      for (std::size_t c = 0; c < n; ++c) a[r] += covariance(r, c) * b[c];
      a[r] *= root_weights[r];
    }
    solve_cholesky(factor, a);
    double change = 0;
    for (std::size_t r = 0; r < n; ++r) a[r] = b[r] - root_weights[r] * a[r];
    for (std::size_t r = 0; r < n; ++r) {
      double value = 0;
      for (std::size_t c = 0; c < n; ++c) value += covariance(r, c) * a[c];
      change = std::max(change, std::fabs(value - latent[r]));
      latent[r] = value;
    }
    if (change < 1e-4) break;
  }
  for (std::size_t r = 0; r < n; ++r) gradient[r] = (labels[r] > 0 ? 1.0 : 0.0) - logistic(latent[r] + means[r]);
}

double Feasibility::Classifier::probability(std::span<const double> x, double mean,
                                            std::span<const char> ordered) const {
  const std::size_t n = points.size();
  std::vector<double> cross(n);
  double variance = kernel(x, x, ordered);
  for (std::size_t r = 0; r < n; ++r) {
    const double k = kernel(x, points[r], ordered);
    mean += k * gradient[r];
    cross[r] = root_weights[r] * k;
  }
  solve_lower(factor, cross);
  for (const double value : cross) variance -= value * value;
  // The logistic averaged over a normal latent (MacKay 1992).
  return logistic(mean / std::sqrt(1 + 3.14159265358979 / 8 * std::max(variance, 0.0)));
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
  // What the names say is worth little beside a computed memory.
  if (use_prior_) mean = 0.3 * std::min(mean, kDefaultRuns) + logit(std::clamp(prior_fits, 0.02, 0.98));
  return mean;
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
    const double known = nature.memory ? kKnownDeviation : kUnknownDeviation * (knob.ordered ? 1.0 : 0.5);
    memory_.linear_deviation.push_back(harmless ? kSmallDeviation : known);
    memory_.relevance.push_back(harmless ? 0.05 : 1.0);
    // Combinations of choices are what is invalid; ordered knobs rarely are.
    other_.linear_deviation.push_back(knob.ordered ? 0.3 : 0.7);
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
  model.memory_.local_deviation = 1.5;
  model.other_.local_deviation = 3.0;

  std::vector<std::vector<double>> memory_points, other_points;
  std::vector<int> memory_labels, other_labels;
  std::vector<double> memory_means, other_means;
  for (const FeasibilityPoint& point : points) {
    const bool ran = point.outcome == Outcome::kMeasured;
    const bool memory_failed = point.outcome == Outcome::kOutOfMemory;
    const std::vector<double> x = model.features(point.coordinates);
    if (ran || memory_failed) {
      memory_points.push_back(x);
      memory_labels.push_back(ran ? 1 : -1);
      memory_means.push_back(model.memory_mean(point.coordinates, point.prior_fits_probability));
    }
    // Out of memory also says that the combination was accepted.
    other_points.push_back(x);
    other_labels.push_back(ran || memory_failed ? 1 : -1);
    other_means.push_back(kOtherRuns);
  }
  model.memory_.learn(memory_points, memory_labels, memory_means, model.ordered_);
  model.other_.learn(other_points, other_labels, other_means, model.ordered_);
  return model;
}

double Feasibility::probability(std::span<const double> coordinates, double prior_fits) const {
  const std::vector<double> x = features(coordinates);
  return memory_.probability(x, memory_mean(coordinates, prior_fits), ordered_) *
         other_.probability(x, kOtherRuns, ordered_);
}

}  // namespace lockstep::tune
