#include "lockstep/tune/models/gaussian_process.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep::tune {
namespace {

constexpr double kJitter = 1e-9;
constexpr double kInactiveCorrelation = 0.3;  // between a knob that acts and the same knob at rest

struct LogNormal {
  double mean;
  double deviation;
};

const LogNormal kScale{std::log(0.1), 1.0};  // s; standard deviation 0.3 of log throughput
const LogNormal kNoise{std::log(0.03 * 0.03), 0.7};
const LogNormal kDrift{std::log(0.01 * 0.01), 2.0};
constexpr double kDriftTrials = 8;            // in which a drift is half forgotten or so
const LogNormal kWeight{std::log(0.2), 1.3};  // a_i: main effects around sqrt(0.1 * 0.2) = 14%, of pairs 6%
const LogNormal kLength{std::log(0.4), 0.6};  // ordered knobs span [0, 1]

bool same(double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); }

// Matern 5/2 for ordered knobs; `derivative` by the logarithm of the length.
double knob_kernel(double x, double y, bool ordered, double length, double& derivative) {
  derivative = 0;
  const bool x_rests = std::isnan(x);
  const bool y_rests = std::isnan(y);
  if (x_rests || y_rests) return x_rests && y_rests ? 1.0 : kInactiveCorrelation;
  if (!ordered) return x == y ? 1.0 : 0.0;
  const double r = std::sqrt(5.0) * std::fabs(x - y) / length;
  const double decay = std::exp(-r);
  derivative = decay * r * r * (1 + r) / 3;
  return (1 + r + r * r / 3) * decay;
}

// Factors 1 + a_i k_i of one knob between all its values, with logarithmic derivatives by weight and length.
struct KnobTable {
  std::size_t values;
  std::vector<double> factor, by_weight, by_length;
};

KnobTable tabulate(const Design& design, std::size_t knob, double weight, double length) {
  const std::vector<double>& values = design.values(knob);
  KnobTable table{values.size(), {}, {}, {}};
  const std::size_t cells = values.size() * values.size();
  table.factor.resize(cells);
  table.by_weight.resize(cells);
  table.by_length.resize(cells);
  for (std::size_t a = 0; a < values.size(); ++a)
    for (std::size_t b = 0; b < values.size(); ++b) {
      double derivative = 0;
      const double k = knob_kernel(values[a], values[b], design.ordered(knob), length, derivative);
      const double factor = 1 + weight * k;
      const std::size_t cell = a * values.size() + b;
      table.factor[cell] = factor;
      table.by_weight[cell] = weight * k / factor;
      table.by_length[cell] = weight * derivative / factor;
    }
  return table;
}

double log_prior(double value, const LogNormal& prior, double& gradient) {
  const double z = (value - prior.mean) / prior.deviation;
  gradient -= z / prior.deviation;
  return -0.5 * z * z;
}

}  // namespace

Design::Design(const Space& space, std::vector<Observation> observations, double prior_trust_variance)
    : observations_(std::move(observations)), prior_trust_variance_(prior_trust_variance) {
  LOCKSTEP_ASSERT(!observations_.empty(), "a model needs an observation");
  for (const Knob& knob : space.knobs()) ordered_.push_back(knob.ordered ? 1 : 0);
  values_.resize(knobs());
  for (const Observation& observation : observations_) {
    for (std::size_t knob = 0; knob < knobs(); ++knob) {
      std::vector<double>& values = values_[knob];
      const double x = observation.coordinates[knob];
      const auto found = std::find_if(values.begin(), values.end(), [&](double value) { return same(value, x); });
      index_.push_back(static_cast<std::size_t>(found - values.begin()));
      if (found == values.end()) values.push_back(x);
    }
    offset_ += observation.log_throughput - (prior_trust_variance_ > 0 ? observation.prior_log_throughput : 0);
  }
  offset_ /= static_cast<double>(size());
}

double Design::centred(std::size_t index) const {
  const Observation& o = observations_[index];
  return o.log_throughput - offset_ - (prior_trust_variance_ > 0 ? o.prior_log_throughput : 0);
}

double Design::nearness(std::size_t a, std::size_t b) const {
  return std::exp(-std::fabs(observations_[a].moment - observations_[b].moment) / kDriftTrials);
}

KernelParameters usual_parameters(std::size_t knobs) {
  KernelParameters parameters{kScale.mean, kNoise.mean, kDrift.mean};
  parameters.insert(parameters.end(), knobs, kWeight.mean);
  parameters.insert(parameters.end(), knobs, kLength.mean);
  return parameters;
}

KernelParameters parameter_deviations(std::size_t knobs) {
  KernelParameters deviations{kScale.deviation, kNoise.deviation, kDrift.deviation};
  deviations.insert(deviations.end(), knobs, kWeight.deviation);
  deviations.insert(deviations.end(), knobs, kLength.deviation);
  return deviations;
}

double log_density(const Design& design, const KernelParameters& parameters, std::vector<double>& gradient) {
  const std::size_t n = design.size();
  const std::size_t d = design.knobs();
  const double scale = std::exp(parameters[0]);
  const double noise = std::exp(parameters[1]);
  const double drift = std::exp(parameters[2]);
  gradient.assign(parameters.size(), 0.0);
  std::vector<KnobTable> tables;
  for (std::size_t i = 0; i < d; ++i)
    tables.push_back(
        tabulate(design, i, std::exp(parameters[kFirstWeight + i]), std::exp(parameters[kFirstWeight + d + i])));

  Matrix covariance(n), plain(n);
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t c = 0; c <= r; ++c) {
      double product = scale;
      for (std::size_t i = 0; i < d; ++i)
        product *= tables[i].factor[design.value_of(r, i) * tables[i].values + design.value_of(c, i)];
      plain(r, c) = product;
      covariance(r, c) = product + drift * design.nearness(r, c) +
                         design.prior_trust_variance() * design.observation(r).prior_log_throughput *
                             design.observation(c).prior_log_throughput;
      if (r == c) covariance(r, c) += noise + design.observation(r).extra_variance + kJitter;
    }
  if (!cholesky_in_place(covariance)) return -1e300;
  std::vector<double> alpha(n);
  for (std::size_t r = 0; r < n; ++r) alpha[r] = design.centred(r);
  solve_cholesky(covariance, alpha);
  double density = -0.5 * log_determinant_from_cholesky(covariance);
  for (std::size_t r = 0; r < n; ++r) density -= 0.5 * design.centred(r) * alpha[r];

  // d density / d theta = 1/2 tr((alpha alpha' - inverse) dK / d theta); off-diagonal pairs count twice.
  const Matrix inverse = inverse_from_cholesky(covariance);
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t c = 0; c <= r; ++c) {
      const double weight = (alpha[r] * alpha[c] - inverse(r, c)) * (r == c ? 0.5 : 1.0);
      const double through = weight * plain(r, c);
      gradient[0] += through;
      if (r == c) gradient[1] += weight * noise;
      gradient[2] += weight * drift * design.nearness(r, c);
      for (std::size_t i = 0; i < d; ++i) {
        const std::size_t cell = design.value_of(r, i) * tables[i].values + design.value_of(c, i);
        gradient[kFirstWeight + i] += through * tables[i].by_weight[cell];
        gradient[kFirstWeight + d + i] += through * tables[i].by_length[cell];
      }
    }
  density += log_prior(parameters[0], kScale, gradient[0]);
  density += log_prior(parameters[1], kNoise, gradient[1]);
  density += log_prior(parameters[2], kDrift, gradient[2]);
  for (std::size_t i = 0; i < d; ++i) {
    density += log_prior(parameters[kFirstWeight + i], kWeight, gradient[kFirstWeight + i]);
    density += log_prior(parameters[kFirstWeight + d + i], kLength, gradient[kFirstWeight + d + i]);
  }
  return density;
}

GaussianProcess::GaussianProcess(std::shared_ptr<const Design> design, const KernelParameters& parameters)
    : design_(std::move(design)),
      scale_(std::exp(parameters[0])),
      noise_variance_(std::exp(parameters[1])),
      drift_variance_(std::exp(parameters[2])) {
  const std::size_t n = design_->size();
  const std::size_t d = design_->knobs();
  std::vector<KnobTable> tables;
  for (std::size_t i = 0; i < d; ++i) {
    weights_.push_back(std::exp(parameters[kFirstWeight + i]));
    lengths_.push_back(std::exp(parameters[kFirstWeight + d + i]));
    tables.push_back(tabulate(*design_, i, weights_[i], lengths_[i]));
  }
  factor_ = Matrix(n);
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t c = 0; c <= r; ++c) {
      double product = scale_;
      for (std::size_t i = 0; i < d; ++i)
        product *= tables[i].factor[design_->value_of(r, i) * tables[i].values + design_->value_of(c, i)];
      factor_(r, c) = product + drift_variance_ * design_->nearness(r, c) +
                      design_->prior_trust_variance() * design_->observation(r).prior_log_throughput *
                          design_->observation(c).prior_log_throughput;
      if (r == c) factor_(r, c) += noise_variance_ + design_->observation(r).extra_variance + kJitter;
    }
  LOCKSTEP_ASSERT(cholesky_in_place(factor_), "the covariance of the observations is positive definite");
  alpha_.resize(n);
  for (std::size_t r = 0; r < n; ++r) alpha_[r] = design_->centred(r);
  solve_cholesky(factor_, alpha_);
}

double GaussianProcess::prior_covariance(std::span<const double> x, std::span<const double> y, double prior_x,
                                         double prior_y) const {
  double product = scale_;
  double unused = 0;
  for (std::size_t i = 0; i < weights_.size(); ++i)
    product *= 1 + weights_[i] * knob_kernel(x[i], y[i], design_->ordered(i), lengths_[i], unused);
  return product + design_->prior_trust_variance() * prior_x * prior_y;
}

GaussianProcess::Projection GaussianProcess::project(std::span<const double> x, double prior) const {
  const std::size_t n = design_->size();
  Projection projection{std::vector<double>(n, scale_),
                        design_->offset() + (design_->prior_trust_variance() > 0 ? prior : 0)};
  std::vector<double> factors;
  double unused = 0;
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const std::vector<double>& values = design_->values(i);
    factors.resize(values.size());
    for (std::size_t v = 0; v < values.size(); ++v)
      factors[v] = 1 + weights_[i] * knob_kernel(x[i], values[v], design_->ordered(i), lengths_[i], unused);
    for (std::size_t r = 0; r < n; ++r) projection.half[r] *= factors[design_->value_of(r, i)];
  }
  for (std::size_t r = 0; r < n; ++r) {
    projection.half[r] += design_->prior_trust_variance() * prior * design_->observation(r).prior_log_throughput;
    projection.mean += projection.half[r] * alpha_[r];
  }
  solve_lower(factor_, projection.half);
  return projection;
}

Posterior GaussianProcess::predict(std::span<const double> x, double prior) const {
  const Projection projection = project(x, prior);
  Posterior posterior{projection.mean, scale_ + 0.0};
  for (const double weight : weights_) posterior.variance *= 1 + weight;
  posterior.variance += design_->prior_trust_variance() * prior * prior;
  for (const double value : projection.half) posterior.variance -= value * value;
  posterior.variance = std::max(posterior.variance, 1e-10);
  return posterior;
}

}  // namespace lockstep::tune
