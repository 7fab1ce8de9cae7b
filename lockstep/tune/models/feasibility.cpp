#include "lockstep/tune/models/feasibility.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/tune/job/knob_nature.h"
#include "lockstep/tune/study/failure.h"

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
constexpr double kOtherSlopeDeviation = 1.2;   // of the slope of an ordered knob: they are less often invalid
constexpr double kOtherLocalDeviation = 4.0;
constexpr double kBlindDeviation = 4.0;  // of the slope of any knob on memory or time
constexpr double kBlindChoice = 1.2;     // of the effect of a choice
constexpr double kBlindLocal = 0.7;
constexpr double kHostSlope = 2.5;  // of a knob whose name says that it needs memory of the host
constexpr double kFirstRuns = 1.5;  // mean where nobody said what the default is
constexpr int kSweeps = 6;

double normal_cumulative(double z) { return 0.5 * std::erfc(-z / std::sqrt(2.0)); }

// Density over cumulative of the normal distribution, safe far into the left tail.
double hazard(double z) {
  if (z < -25) return -z;
  return std::exp(-0.5 * z * z) / std::sqrt(2 * 3.14159265358979) / normal_cumulative(z);
}

// Of two models that predicted the same trials, how far the first is believed.
double weight_of(double first_score, double second_score) {
  return std::clamp(1 / (1 + std::exp(second_score - first_score)), 0.02, 0.98);
}

bool fills_host(const std::string& knob) {
  const std::string name = compact_name(knob);
  constexpr std::array kPieces{"worker", "prefetch", "microbatch", "batchsize", "batchmicro", "pin", "offload"};
  return std::any_of(kPieces.begin(), kPieces.end(),
                     [&](const char* piece) { return name.find(piece) != std::string::npos; });
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

double Feasibility::Classifier::mean_at(std::span<const double> x) const {
  double value = usual;
  for (std::size_t i = 0; i < slopes.size(); ++i) value -= slopes[i] * x[i];
  return value;
}

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
    predictive_score = 0;
    for (std::size_t i = 0; i < n; ++i) {
      const double marginal = covariance(i, i);
      const double cavity_precision = std::max(1 / marginal - precisions[i], 1e-9);
      const double cavity_shift = mean[i] / marginal - site_shift[i];
      const double told =
          normal_cumulative(labels[i] * cavity_shift / cavity_precision / std::sqrt(1 + 1 / cavity_precision));
      predictive_score += std::log(std::max(told, 0.01));
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
    planned_.linear_deviation.push_back(harmless ? kHarmlessDeviation : deviation);
    planned_.relevance.push_back(harmless ? 0.05 : 1.0);
    const double any = knob.ordered ? kBlindDeviation : kBlindChoice;
    for (Classifier* blind : {&device_, &host_, &time_}) {
      blind->linear_deviation.push_back(any);
      blind->relevance.push_back(1.0);
      blind->slopes.push_back(0);
    }
    if (knob.ordered && fills_host(knob.name)) host_.slopes.back() = kHostSlope;
    // Combinations of choices are what is invalid; ordered knobs less often.
    other_.linear_deviation.push_back(knob.ordered ? kOtherSlopeDeviation : kOtherChoiceDeviation);
    other_.relevance.push_back(knob.ordered ? 0.2 : 1.0);
  }
  const double runs = space.has_default() ? kDefaultRuns : kFirstRuns;
  device_.usual = host_.usual = time_.usual = runs;
  device_.local_deviation = host_.local_deviation = time_.local_deviation = kBlindLocal;
  other_.usual = kOtherRuns;
  other_.local_deviation = kOtherLocalDeviation;
  planned_.local_deviation = kLocalDeviation;
}

Feasibility::Cause Feasibility::cause_of(const FeasibilityPoint& point) {
  switch (point.outcome) {
    case Outcome::kMeasured:
      return Cause::kNone;
    case Outcome::kOutOfMemory:
      return memory_kind(point.message) == MemoryKind::kHost ? Cause::kHost : Cause::kDevice;
    case Outcome::kTimeout:
    case Outcome::kHang:
      return Cause::kTime;
    case Outcome::kInvalid:
    case Outcome::kCrash:
      break;
  }
  return Cause::kRefused;
}

void Feasibility::learn_cause(Classifier& classifier, std::span<const FeasibilityPoint> points, Cause cause) {
  std::vector<std::vector<double>> seen;
  std::vector<int> labels;
  std::vector<double> means;
  for (const FeasibilityPoint& point : points) {
    const Cause found = cause_of(point);
    // What ran out of memory or time was accepted; of other failures nothing is known but their own cause.
    const bool fine = found == Cause::kNone || (cause == Cause::kRefused && found != Cause::kRefused);
    if (!fine && found != cause) continue;
    seen.push_back(features(point.coordinates));
    labels.push_back(fine ? 1 : -1);
    means.push_back(&classifier == &planned_ ? memory_mean(point.coordinates, point.prior_fits_probability)
                                             : classifier.mean_at(seen.back()));
  }
  classifier.learn(seen, labels, means, ordered_);
}

void Feasibility::learn_causes(const Space& space, std::span<const FeasibilityPoint> points) {
  const auto failed_by = [&](Cause cause) {
    return std::any_of(points.begin(), points.end(), [&](const FeasibilityPoint& p) { return cause_of(p) == cause; });
  };
  if (use_prior_) {
    learn_cause(planned_, points, Cause::kDevice);
  } else {
    std::vector<MemorySketch::Point> seen;
    for (const FeasibilityPoint& point : points)
      if (const Cause cause = cause_of(point); cause == Cause::kNone || cause == Cause::kDevice)
        seen.push_back({point.config, cause == Cause::kNone});
    sketch_.emplace(space, seen, space.has_default());
    learn_cause(device_, points, Cause::kDevice);
    sketch_weight_ = weight_of(sketch_->predictive_score(), device_.predictive_score);
  }
  host_failed_ = failed_by(Cause::kHost);
  if (host_failed_) learn_cause(host_, points, Cause::kHost);
  time_failed_ = failed_by(Cause::kTime);
  if (time_failed_) learn_cause(time_, points, Cause::kTime);
  std::vector<Refusals::Point> tried;
  for (const FeasibilityPoint& point : points)
    tried.push_back({point.config, cause_of(point) == Cause::kRefused, point.message});
  refusals_.emplace(space, tried);
  learn_cause(other_, points, Cause::kRefused);
  refusals_weight_ = weight_of(refusals_->predictive_score(), other_.predictive_score);
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
  model.learn_causes(space, points);
  return model;
}

double Feasibility::probability(const Config& config, std::span<const double> coordinates, double prior_fits) const {
  const std::vector<double> x = features(coordinates);
  const auto told = [&](const Classifier& classifier) {
    return classifier.probability(x, classifier.mean_at(x), ordered_);
  };
  double runs = 0;
  if (sketch_)
    runs = sketch_weight_ * sketch_->fits(config) + (1 - sketch_weight_) * told(device_);
  else
    runs = planned_.probability(x, memory_mean(coordinates, prior_fits), ordered_);
  if (host_failed_) runs *= told(host_);
  if (time_failed_) runs *= told(time_);
  return runs * (refusals_weight_ * refusals_->accepts(config) + (1 - refusals_weight_) * told(other_));
}

}  // namespace lockstep::tune
