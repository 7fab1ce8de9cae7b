// Surrogate: a Gaussian process on the logarithm of throughput.
//
// Knobs multiply more often than they add, so that effects on the logarithm are close to additive; the kernel says so
// without insisting:
//
//   k(x, y) = s * prod_i (1 + a_i k_i(x_i, y_i)),   k_i Matern 5/2 for ordered knobs, "same choice" for the others
//
// Its expansion has a constant, a main effect of variance s a_i per knob, and interactions of variance s a_i a_j: with
// a large s the knobs are nearly additive, with a small one they interact freely. s, a_i, the length scales and the
// noise are found by maximum posterior probability (gradients, fixed start: deterministic), so a knob without effect
// costs few trials. A Prior enters as mean function b * prior(x) with b ~ N(1, 0.5): evidence that disagrees shrinks b.
//
// Immutable once fitted; thread-safe.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/tune/linear_algebra.h"
#include "lockstep/tune/space.h"

namespace lockstep::tune {

struct Observation {
  std::vector<double> coordinates;  // Space::coordinates()
  double log_throughput = 0;
  double extra_variance = 0;        // beyond the noise that all share: a launch that was cut short
  double prior_log_throughput = 0;  // Belief::log_throughput; the same reference for all
};

struct Posterior {
  double mean = 0;
  double variance = 0;  // of the function, without the noise of a launch
};

class Surrogate {
 public:
  // At least one observation. `with_prior`: use prior_log_throughput.
  static Surrogate fit(const Space& space, std::vector<Observation> observations, bool with_prior);

  Posterior predict(std::span<const double> coordinates, double prior_log_throughput = 0) const;
  // Joint posterior of several points; covariance is full.
  struct Joint {
    std::vector<double> mean;
    Matrix covariance;
  };
  Joint predict_jointly(std::span<const std::vector<double>> points,
                        std::span<const double> prior_log_throughputs = {}) const;

  double noise_variance() const { return noise_variance_; }  // of one launch, in the logarithm
  std::size_t knobs() const { return ordered_.size(); }
  // Variance of the main effect that the kernel allows each knob: s a_i.
  std::vector<double> main_variances() const;

  // Adds a pretended observation (a trial under way, at its posterior mean) without refitting.
  Surrogate with_pretended(const std::vector<double>& coordinates, double prior_log_throughput = 0) const;

 private:
  Surrogate() = default;
  double kernel(std::span<const double> x, std::span<const double> y) const;
  double posterior_log_density(const std::vector<double>& parameters, std::vector<double>* gradient) const;
  void unpack(const std::vector<double>& parameters);
  void condition();

  std::vector<char> ordered_;  // by knob
  std::vector<Observation> observations_;
  bool with_prior_ = false;
  double offset_ = 0;  // mean of the observed logarithms (or of their distance from the prior)

  double scale_ = 1;             // s
  std::vector<double> weights_;  // a_i
  std::vector<double> lengths_;  // of ordered knobs; 1 for others
  double noise_variance_ = 1e-3;

  Matrix factor_;              // Cholesky of the covariance of the observations
  std::vector<double> alpha_;  // inverse covariance times centred observations
};

}  // namespace lockstep::tune
