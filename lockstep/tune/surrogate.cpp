#include "lockstep/tune/surrogate.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"

namespace lockstep::tune {
namespace {

constexpr double kPriorTrustVariance = 0.25;  // of the factor b on the Prior
constexpr double kJitter = 1e-9;
constexpr double kInactiveCorrelation = 0.3;  // between a knob that acts and the same knob at rest

// Normal priors on the logarithms of the parameters: (mean, standard deviation).
struct LogNormal {
  double mean;
  double deviation;
};
const LogNormal kScalePrior{std::log(0.25), 1.0};   // s; standard deviation 0.5 of log throughput
const LogNormal kWeightPrior{std::log(0.03), 1.3};  // a_i: main effects around sqrt(0.25 * 0.03) = 9%
const LogNormal kLengthPrior{std::log(0.7), 0.6};   // ordered knobs span [0, 1]
const LogNormal kNoisePrior{std::log(0.025 * 0.025), 0.8};

// Matern 5/2 and its derivative by the logarithm of the length.
double matern(double distance, double length, double* derivative = nullptr) {
  const double r = std::sqrt(5.0) * distance / length;
  const double decay = std::exp(-r);
  if (derivative != nullptr) *derivative = decay * r * r * (1 + r) / 3;
  return (1 + r + r * r / 3) * decay;
}

double knob_kernel(double x, double y, bool ordered, double length, double* derivative = nullptr) {
  if (derivative != nullptr) *derivative = 0;
  const bool x_rests = std::isnan(x);
  const bool y_rests = std::isnan(y);
  if (x_rests || y_rests) return x_rests && y_rests ? 1.0 : kInactiveCorrelation;
  if (ordered) return matern(std::fabs(x - y), length, derivative);
  return x == y ? 1.0 : 0.0;
}

double log_prior(double value, const LogNormal& prior, double& gradient) {
  const double z = (value - prior.mean) / prior.deviation;
  gradient -= z / prior.deviation;
  return -0.5 * z * z;
}

// Ascends by resilient propagation (Riedmiller 1994): steps per parameter, signs of the gradient only. Deterministic,
// no line search, and indifferent to the scale of the objective.
template <class Objective>
std::vector<double> maximise(std::vector<double> x, int iterations, const Objective& objective) {
  std::vector<double> gradient(x.size()), last(x.size(), 0.0), step(x.size(), 0.2), best = x;
  double best_value = -1e300;
  for (int iteration = 0; iteration < iterations; ++iteration) {
    const double value = objective(x, &gradient);
    if (value > best_value) {
      best_value = value;
      best = x;
    }
    double largest = 0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double agreement = gradient[i] * last[i];
      if (agreement > 0) step[i] = std::min(step[i] * 1.3, 0.8);
      if (agreement < 0) step[i] = std::max(step[i] * 0.5, 1e-4);
      last[i] = agreement < 0 ? 0 : gradient[i];
      if (last[i] != 0) {
        x[i] += std::copysign(step[i], last[i]);
        largest = std::max(largest, step[i]);
      }
    }
    if (largest > 0 && largest < 0.01) break;
  }
  return best;
}

}  // namespace

Surrogate Surrogate::fit(const Space& space, std::vector<Observation> observations, bool with_prior) {
  LOCKSTEP_ASSERT(!observations.empty(), "a surrogate needs an observation");
  Surrogate model;
  for (const Knob& knob : space.knobs()) model.ordered_.push_back(knob.ordered ? 1 : 0);
  model.observations_ = std::move(observations);
  model.with_prior_ = with_prior;
  for (const Observation& o : model.observations_)
    model.offset_ += o.log_throughput - (with_prior ? o.prior_log_throughput : 0);
  model.offset_ /= static_cast<double>(model.observations_.size());

  const std::size_t d = model.ordered_.size();
  std::vector<double> start(2 * d + 2);
  start[0] = kScalePrior.mean;
  start[1] = kNoisePrior.mean;
  for (std::size_t i = 0; i < d; ++i) {
    start[2 + i] = kWeightPrior.mean;
    start[2 + d + i] = kLengthPrior.mean;
  }
  if (model.observations_.size() >= 3)
    start = maximise(start, 40, [&](const std::vector<double>& x, std::vector<double>* gradient) {
      return model.posterior_log_density(x, gradient);
    });
  model.unpack(start);
  model.condition();
  return model;
}

void Surrogate::unpack(const std::vector<double>& parameters) {
  const std::size_t d = ordered_.size();
  scale_ = std::exp(parameters[0]);
  noise_variance_ = std::exp(parameters[1]);
  weights_.resize(d);
  lengths_.resize(d);
  for (std::size_t i = 0; i < d; ++i) {
    weights_[i] = std::exp(parameters[2 + i]);
    lengths_[i] = std::exp(parameters[2 + d + i]);
  }
}

double Surrogate::posterior_log_density(const std::vector<double>& parameters, std::vector<double>* gradient) const {
  const std::size_t n = observations_.size();
  const std::size_t d = ordered_.size();
  Surrogate at;  // the parameters unpacked, nothing else
  at.ordered_ = ordered_;
  at.unpack(parameters);
  gradient->assign(parameters.size(), 0.0);

  Matrix covariance(n), plain(n);
  // [pair][knob]: a_i k_i / (1 + a_i k_i), and the same with the derivative of k_i by the length.
  std::vector<double> by_weight(n * n * d), by_length(n * n * d);
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t c = 0; c <= r; ++c) {
      double product = at.scale_;
      for (std::size_t i = 0; i < d; ++i) {
        double derivative = 0;
        const double k = knob_kernel(observations_[r].coordinates[i], observations_[c].coordinates[i], ordered_[i] != 0,
                                     at.lengths_[i], &derivative);
        const double factor = 1 + at.weights_[i] * k;
        product *= factor;
        by_weight[(r * n + c) * d + i] = at.weights_[i] * k / factor;
        by_length[(r * n + c) * d + i] = at.weights_[i] * derivative / factor;
      }
      plain(r, c) = product;
      double value = product;
      if (with_prior_)
        value += kPriorTrustVariance * observations_[r].prior_log_throughput * observations_[c].prior_log_throughput;
      if (r == c) value += at.noise_variance_ + observations_[r].extra_variance + kJitter;
      covariance(r, c) = value;
    }
  if (!cholesky_in_place(covariance)) return -1e300;
  std::vector<double> alpha(n);
  for (std::size_t r = 0; r < n; ++r) {
    alpha[r] = observations_[r].log_throughput - offset_;
    if (with_prior_) alpha[r] -= observations_[r].prior_log_throughput;
  }
  std::vector<double> centred = alpha;
  solve_cholesky(covariance, alpha);
  double density = -0.5 * log_determinant_from_cholesky(covariance);
  for (std::size_t r = 0; r < n; ++r) density -= 0.5 * centred[r] * alpha[r];

  // d density / d theta = 1/2 tr((alpha alpha' - inverse) dK / d theta); off-diagonal pairs count twice.
  const Matrix inverse = inverse_from_cholesky(covariance);
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t c = 0; c <= r; ++c) {
      const double weight = (alpha[r] * alpha[c] - inverse(r, c)) * (r == c ? 0.5 : 1.0);
      const double through = weight * plain(r, c);
      (*gradient)[0] += through;
      if (r == c) (*gradient)[1] += weight * at.noise_variance_;
      const double* w = &by_weight[(r * n + c) * d];
      const double* l = &by_length[(r * n + c) * d];
      for (std::size_t i = 0; i < d; ++i) {
        (*gradient)[2 + i] += through * w[i];
        (*gradient)[2 + d + i] += through * l[i];
      }
    }
  density += log_prior(parameters[0], kScalePrior, (*gradient)[0]);
  density += log_prior(parameters[1], kNoisePrior, (*gradient)[1]);
  for (std::size_t i = 0; i < d; ++i) {
    density += log_prior(parameters[2 + i], kWeightPrior, (*gradient)[2 + i]);
    density += log_prior(parameters[2 + d + i], kLengthPrior, (*gradient)[2 + d + i]);
  }
  return density;
}

double Surrogate::kernel(std::span<const double> x, std::span<const double> y) const {
  double product = scale_;
  for (std::size_t i = 0; i < ordered_.size(); ++i)
    product *= 1 + weights_[i] * knob_kernel(x[i], y[i], ordered_[i] != 0, lengths_[i]);
  return product;
}

void Surrogate::condition() {
  const std::size_t n = observations_.size();
  factor_ = Matrix(n);
  for (std::size_t r = 0; r < n; ++r)
    for (std::size_t c = 0; c <= r; ++c) {
      double value = kernel(observations_[r].coordinates, observations_[c].coordinates);
      if (with_prior_)
        value += kPriorTrustVariance * observations_[r].prior_log_throughput * observations_[c].prior_log_throughput;
      if (r == c) value += noise_variance_ + observations_[r].extra_variance + kJitter;
      factor_(r, c) = value;
    }
  LOCKSTEP_ASSERT(cholesky_in_place(factor_), "the covariance of the observations is positive definite");
  alpha_.resize(n);
  for (std::size_t r = 0; r < n; ++r) {
    alpha_[r] = observations_[r].log_throughput - offset_;
    if (with_prior_) alpha_[r] -= observations_[r].prior_log_throughput;
  }
  solve_cholesky(factor_, alpha_);
}

Posterior Surrogate::predict(std::span<const double> x, double prior) const {
  const std::size_t n = observations_.size();
  std::vector<double> cross(n);
  Posterior posterior{offset_ + (with_prior_ ? prior : 0), kernel(x, x)};
  if (with_prior_) posterior.variance += kPriorTrustVariance * prior * prior;
  for (std::size_t r = 0; r < n; ++r) {
    cross[r] = kernel(x, observations_[r].coordinates);
    if (with_prior_) cross[r] += kPriorTrustVariance * prior * observations_[r].prior_log_throughput;
    posterior.mean += cross[r] * alpha_[r];
  }
  solve_lower(factor_, cross);
  for (const double value : cross) posterior.variance -= value * value;
  posterior.variance = std::max(posterior.variance, 1e-10);
  return posterior;
}

Surrogate::Joint Surrogate::predict_jointly(std::span<const std::vector<double>> points,
                                            std::span<const double> priors) const {
  const std::size_t n = observations_.size();
  const std::size_t m = points.size();
  const auto prior_of = [&](std::size_t i) { return with_prior_ && !priors.empty() ? priors[i] : 0.0; };
  Joint joint{std::vector<double>(m), Matrix(m)};
  std::vector<std::vector<double>> half(m, std::vector<double>(n));  // inverse(L) k(X, point)
  for (std::size_t i = 0; i < m; ++i) {
    joint.mean[i] = offset_ + prior_of(i);
    for (std::size_t r = 0; r < n; ++r) {
      half[i][r] = kernel(points[i], observations_[r].coordinates) +
                   kPriorTrustVariance * prior_of(i) * observations_[r].prior_log_throughput * (with_prior_ ? 1 : 0);
      joint.mean[i] += half[i][r] * alpha_[r];
    }
    solve_lower(factor_, half[i]);
    for (std::size_t j = 0; j <= i; ++j) {
      double value = kernel(points[i], points[j]) + kPriorTrustVariance * prior_of(i) * prior_of(j);
      for (std::size_t r = 0; r < n; ++r) value -= half[i][r] * half[j][r];
      joint.covariance(i, j) = value;
      joint.covariance(j, i) = value;
    }
  }
  return joint;
}

std::vector<double> Surrogate::main_variances() const {
  std::vector<double> variances;
  for (const double weight : weights_) variances.push_back(scale_ * weight);
  return variances;
}

Surrogate Surrogate::with_pretended(const std::vector<double>& coordinates, double prior) const {
  Surrogate extended = *this;
  const Posterior expected = predict(coordinates, prior);
  extended.observations_.push_back({coordinates, expected.mean, 0.0, prior});
  extended.condition();
  return extended;
}

}  // namespace lockstep::tune
