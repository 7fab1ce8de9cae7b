// One Gaussian process with given kernel parameters, and the density that says how well parameters explain the data.
// Surrogate (surrogate.h) describes the kernel and averages several of these.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/tune/models/linear_algebra.h"
#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

struct Observation {
  std::vector<double> coordinates;  // Space::coordinates()
  double log_throughput = 0;
  double extra_variance = 0;        // beyond the noise that all share: a launch that was cut short
  double prior_log_throughput = 0;  // Belief::log_throughput; the same reference for all
  double moment = 0;                // when it was launched, counted in trials: machines drift
};

struct Posterior {
  double mean = 0;
  double variance = 0;  // of the function, without the noise of a launch
};

// Where the observations lie. Knobs have few distinct values, so kernels are tabulated by value and looked up.
class Design {
 public:
  // `prior_trust_variance`: of the factor on prior_log_throughput; 0: the prior is not used.
  Design(const Space& space, std::vector<Observation> observations, double prior_trust_variance);

  std::size_t size() const { return observations_.size(); }
  std::size_t knobs() const { return ordered_.size(); }
  bool ordered(std::size_t knob) const { return ordered_[knob] != 0; }
  const std::vector<double>& values(std::size_t knob) const { return values_[knob]; }
  std::size_t value_of(std::size_t observation, std::size_t knob) const { return index_[observation * knobs() + knob]; }
  const Observation& observation(std::size_t index) const { return observations_[index]; }
  const std::vector<Observation>& observations() const { return observations_; }
  double prior_trust_variance() const { return prior_trust_variance_; }
  double last_moment() const { return observations_.back().moment; }
  double offset() const { return offset_; }             // mean of the observed logarithms (less the prior's)
  double centred(std::size_t index) const;              // observation less offset and prior
  double nearness(std::size_t a, std::size_t b) const;  // in time: 1 for the same moment, 0 for far ones

 private:
  std::vector<char> ordered_;
  std::vector<Observation> observations_;
  std::vector<std::vector<double>> values_;
  std::vector<std::size_t> index_;
  double prior_trust_variance_;
  double offset_ = 0;
};

// Logarithms, one vector for optimiser and sampler: [scale, noise variance, drift variance, weight by knob, length by
// knob]. Drift is how much the whole machine is faster or slower for some trials.
inline constexpr std::size_t kFirstWeight = 3;
using KernelParameters = std::vector<double>;

// The centre of the (independent normal) prior on the parameters, and its deviations.
KernelParameters usual_parameters(std::size_t knobs);
KernelParameters parameter_deviations(std::size_t knobs);

// Log of (marginal likelihood x prior), up to a constant, and its gradient (resized). -1e300 where the covariance is
// not positive definite.
double log_density(const Design& design, const KernelParameters& parameters, std::vector<double>& gradient);

class GaussianProcess {
 public:
  GaussianProcess(std::shared_ptr<const Design> design, const KernelParameters& parameters);

  Posterior predict(std::span<const double> coordinates, double prior_log_throughput = 0) const;
  // Covariances with the observations, solved by the lower factor; for joint posteriors.
  struct Projection {
    std::vector<double> half;
    double mean;
  };
  Projection project(std::span<const double> coordinates, double prior_log_throughput) const;
  double prior_covariance(std::span<const double> x, std::span<const double> y, double prior_x, double prior_y) const;

  double noise_variance() const { return noise_variance_; }
  double drift_variance() const { return drift_variance_; }
  double scale() const { return scale_; }
  const std::vector<double>& weights() const { return weights_; }

 private:
  std::shared_ptr<const Design> design_;
  double scale_;
  double noise_variance_;
  double drift_variance_;
  std::vector<double> weights_;
  std::vector<double> lengths_;
  Matrix factor_;              // Cholesky of the covariance of the observations
  std::vector<double> alpha_;  // inverse covariance times centred observations
};

}  // namespace lockstep::tune
