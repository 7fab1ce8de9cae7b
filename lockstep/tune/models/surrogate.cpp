#include "lockstep/tune/models/surrogate.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace lockstep::tune {
namespace {

constexpr double kPriorTrustVariance = 0.25;  // of the factor b on the Prior
constexpr int kAscentSteps = 30;
constexpr int kMembers = 8;
constexpr int kStepsBetweenMembers = 4;
constexpr double kLangevinStep = 0.45;  // in units of the prior's deviations

// Ascends by resilient propagation (Riedmiller 1994): steps per parameter, signs of the gradient only. Deterministic,
// no line search, and indifferent to the scale of the objective.
KernelParameters best_parameters(const Design& design) {
  KernelParameters x = usual_parameters(design.knobs()), best = x;
  std::vector<double> gradient, last(x.size(), 0.0), step(x.size(), 0.3);
  double best_value = -1e300;
  for (int iteration = 0; iteration < kAscentSteps; ++iteration) {
    const double value = log_density(design, x, gradient);
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
      if (last[i] == 0) continue;
      x[i] += std::copysign(step[i], last[i]);
      largest = std::max(largest, step[i]);
    }
    if (largest > 0 && largest < 0.02) break;
  }
  return best;
}

// Draws from the posterior of the parameters: Metropolis-adjusted Langevin steps (Roberts and Tweedie 1996), scaled by
// the prior's deviations.
std::vector<KernelParameters> draw_parameters(const Design& design, KernelParameters x) {
  const KernelParameters deviations = parameter_deviations(design.knobs());
  Random random(0x5eed);
  std::normal_distribution<double> normal;
  std::uniform_real_distribution<double> uniform;
  std::vector<double> gradient, next_gradient;
  double density = log_density(design, x, gradient);
  double step = kLangevinStep;
  std::vector<KernelParameters> drawn{x};
  for (int i = 1; static_cast<int>(drawn.size()) < kMembers; ++i) {
    KernelParameters next = x;
    for (std::size_t p = 0; p < x.size(); ++p) {
      const double scale = step * deviations[p];
      next[p] += 0.5 * scale * scale * gradient[p] + scale * normal(random);
    }
    const double next_density = log_density(design, next, next_gradient);
    double ratio = next_density - density;
    for (std::size_t p = 0; p < x.size(); ++p) {
      const double variance = step * step * deviations[p] * deviations[p];
      const double forth = next[p] - x[p] - 0.5 * variance * gradient[p];
      const double back = x[p] - next[p] - 0.5 * variance * next_gradient[p];
      ratio += (forth * forth - back * back) / (2 * variance);
    }
    const bool accept = std::log(uniform(random)) < ratio;
    if (accept) {
      x = std::move(next);
      gradient = next_gradient;
      density = next_density;
    }
    step = std::clamp(step * (accept ? 1.1 : 0.85), 0.05, 1.0);
    if (i % kStepsBetweenMembers == 0) drawn.push_back(x);
  }
  return drawn;
}

double improvement(const Posterior& posterior, double incumbent) {
  const double deviation = std::sqrt(posterior.variance);
  const double z = (posterior.mean - incumbent) / deviation;
  const double density = std::exp(-0.5 * z * z) / std::sqrt(2 * 3.14159265358979);
  return deviation * (z * 0.5 * std::erfc(-z / std::sqrt(2.0)) + density);
}

}  // namespace

Surrogate Surrogate::fit(const Space& space, std::vector<Observation> observations, bool with_prior) {
  Surrogate model;
  model.space_ = std::make_shared<const Space>(space);
  model.design_ =
      std::make_shared<const Design>(space, std::move(observations), with_prior ? kPriorTrustVariance : 0.0);
  model.parameters_ = draw_parameters(*model.design_, best_parameters(*model.design_));
  for (const KernelParameters& parameters : model.parameters_) model.members_.emplace_back(model.design_, parameters);
  return model;
}

Posterior Surrogate::predict(std::span<const double> coordinates, double prior) const {
  return judge(coordinates, 0, prior).posterior;
}

Surrogate::Judgement Surrogate::judge(std::span<const double> coordinates, double incumbent, double prior) const {
  Judgement total;
  double squares = 0;
  for (const GaussianProcess& member : members_) {
    const Posterior posterior = member.predict(coordinates, prior);
    total.posterior.mean += posterior.mean;
    total.posterior.variance += posterior.variance;
    total.improvement += improvement(posterior, incumbent);
    squares += posterior.mean * posterior.mean;
  }
  const auto count = static_cast<double>(members_.size());
  const double mean = total.posterior.mean / count;
  total.posterior = {mean, total.posterior.variance / count + std::max(0.0, squares / count - mean * mean)};
  total.improvement /= count;
  return total;
}

Surrogate::Joint Surrogate::predict_jointly(std::span<const std::vector<double>> points,
                                            std::span<const double> priors) const {
  const std::size_t m = points.size();
  const auto count = static_cast<double>(members_.size());
  const auto prior_of = [&](std::size_t i) { return priors.empty() ? 0.0 : priors[i]; };
  Joint joint{std::vector<double>(m, 0.0), Matrix(m)};
  Matrix squares(m);
  for (const GaussianProcess& member : members_) {
    std::vector<GaussianProcess::Projection> projections;
    for (std::size_t i = 0; i < m; ++i) projections.push_back(member.project(points[i], prior_of(i)));
    for (std::size_t i = 0; i < m; ++i) {
      joint.mean[i] += projections[i].mean / count;
      for (std::size_t j = 0; j <= i; ++j) {
        double value = member.prior_covariance(points[i], points[j], prior_of(i), prior_of(j));
        for (std::size_t r = 0; r < projections[i].half.size(); ++r)
          value -= projections[i].half[r] * projections[j].half[r];
        joint.covariance(i, j) += value / count;
        squares(i, j) += projections[i].mean * projections[j].mean / count;
      }
    }
  }
  for (std::size_t i = 0; i < m; ++i)
    for (std::size_t j = 0; j <= i; ++j) {
      joint.covariance(i, j) += squares(i, j) - joint.mean[i] * joint.mean[j];
      joint.covariance(j, i) = joint.covariance(i, j);
    }
  return joint;
}

double Surrogate::noise_variance() const {
  double sum = 0;
  for (const GaussianProcess& member : members_) sum += member.noise_variance();
  return sum / static_cast<double>(members_.size());
}

double Surrogate::drift_variance() const {
  double sum = 0;
  for (const GaussianProcess& member : members_) sum += member.drift_variance();
  return sum / static_cast<double>(members_.size());
}

std::vector<double> Surrogate::main_variances() const {
  std::vector<double> variances(knobs(), 0.0);
  for (const GaussianProcess& member : members_)
    for (std::size_t i = 0; i < knobs(); ++i)
      variances[i] += member.scale() * member.weights()[i] / static_cast<double>(members_.size());
  return variances;
}

Surrogate Surrogate::with_pretended(const std::vector<double>& coordinates, double prior) const {
  Surrogate extended = *this;
  std::vector<Observation> observations = design_->observations();
  observations.push_back({coordinates, predict(coordinates, prior).mean, 0.0, prior, design_->last_moment()});
  extended.design_ = std::make_shared<const Design>(*space_, std::move(observations), design_->prior_trust_variance());
  extended.members_.clear();
  for (const KernelParameters& parameters : parameters_) extended.members_.emplace_back(extended.design_, parameters);
  return extended;
}

}  // namespace lockstep::tune
