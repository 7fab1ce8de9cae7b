// Surrogate: what is believed about the logarithm of throughput everywhere in the space, given the trials.
//
// A Gaussian process. Knobs multiply more often than they add, so that effects on the logarithm are close to additive;
// the kernel says so without insisting:
//
//   k(x, y) = s * prod_i (1 + a_i k_i(x_i, y_i)),   k_i Matern 5/2 for ordered knobs, "same choice" for the others
//
// Its expansion has a constant, a main effect of variance s a_i per knob, and interactions of variance s a_i a_j: with
// a large s the knobs are nearly additive, with a small one they interact freely. Tens of trials do not determine s,
// a_i, the length scales and the noise for sure, and one best guess of them is overconfident; so several are drawn from
// their posterior (Langevin steps from the best guess, fixed seed: deterministic) and their predictions averaged. A
// Prior enters as mean function b * prior(x) with b ~ N(1, 0.5): evidence that disagrees shrinks b.
//
// Immutable once fitted; thread-safe.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "lockstep/tune/models/gaussian_process.h"
#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

class Surrogate {
 public:
  // At least one observation. `with_prior`: use prior_log_throughput.
  static Surrogate fit(const Space& space, std::vector<Observation> observations, bool with_prior);

  Posterior predict(std::span<const double> coordinates, double prior_log_throughput = 0) const;
  // Beside it E[max(f - incumbent, 0)].
  struct Judgement {
    Posterior posterior;
    double improvement = 0;
  };
  Judgement judge(std::span<const double> coordinates, double incumbent, double prior_log_throughput = 0) const;

  // Joint posterior of several points; covariance is full.
  struct Joint {
    std::vector<double> mean;
    Matrix covariance;
  };
  Joint predict_jointly(std::span<const std::vector<double>> points,
                        std::span<const double> prior_log_throughputs = {}) const;

  double noise_variance() const;  // of one launch, in the logarithm
  double drift_variance() const;  // of the machine between far moments, in the logarithm
  std::size_t knobs() const { return design_->knobs(); }
  // Variance of the main effect that the kernel allows each knob: s a_i.
  std::vector<double> main_variances() const;

  // Adds a pretended observation (a trial under way, at its posterior mean) without refitting.
  Surrogate with_pretended(const std::vector<double>& coordinates, double prior_log_throughput = 0) const;

 private:
  std::shared_ptr<const Space> space_;
  std::shared_ptr<const Design> design_;
  std::vector<KernelParameters> parameters_;
  std::vector<GaussianProcess> members_;  // equally probable
};

}  // namespace lockstep::tune
