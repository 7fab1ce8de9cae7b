// Feasibility: the probability that a configuration runs at all, learned from what failed and what did not.
//
// Memory and everything else are separate. Memory: a sketch of the usual formula with its constants open
// (memory_sketch.h); where the planner computed it, a Gaussian-process classifier around the planner's answer. All
// other failures sit in combinations of choices: a classifier of its own. Classifiers have a probit link and are fitted
// by expectation propagation (Rasmussen and Williams 2006, algorithm 3.5). Immutable once fitted; thread-safe.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lockstep/tune/models/linear_algebra.h"
#include "lockstep/tune/models/memory_sketch.h"
#include "lockstep/tune/space/space.h"
#include "lockstep/tune/study/trial.h"

namespace lockstep::tune {

struct FeasibilityPoint {
  Config config;
  std::vector<double> coordinates;  // Space::coordinates()
  Outcome outcome = Outcome::kMeasured;
  double prior_fits_probability = 1;
};

class Feasibility {
 public:
  // `use_prior`: the points carry prior_fits_probability.
  static Feasibility fit(const Space& space, std::span<const FeasibilityPoint> points, bool use_prior);

  // Probability that the configuration gives a measurement.
  double probability(const Config& config, std::span<const double> coordinates,
                     double prior_fits_probability = 1) const;

 private:
  // One classifier over the same features.
  struct Classifier {
    std::vector<double> linear_deviation;     // by feature: standard deviation of its weight
    double local_deviation = 1;               // of the residual process
    std::vector<double> relevance;            // by knob, of the residual process: 0: the knob does not count
    std::vector<std::vector<double>> points;  // features of the observations
    std::vector<double> precisions;           // of the sites that stand for the observations
    std::vector<double> shifts;               // inverse(K + inverse(precisions)) times (site means - prior means)
    Matrix factor;                            // Cholesky of I + sqrt(precisions) K sqrt(precisions)

    double kernel(std::span<const double> x, std::span<const double> y, std::span<const char> ordered) const;
    void learn(std::span<const std::vector<double>> features, std::span<const int> labels,
               std::span<const double> means, std::span<const char> ordered);
    // Probability at a point whose prior mean is `mean`.
    double probability(std::span<const double> x, double mean, std::span<const char> ordered) const;
  };

  void believe_names(const Space& space);
  double memory_mean(std::span<const double> coordinates, double prior_fits) const;
  // Offsets from the default by ordered knob, choices of the others.
  std::vector<double> features(std::span<const double> coordinates) const;

  std::vector<char> ordered_;
  std::vector<double> slopes_;                      // by ordered knob: latent loss per unit of its coordinate
  std::vector<std::vector<double>> choice_losses_;  // by unordered knob and choice, against the default's
  std::vector<double> default_coordinates_;
  bool use_prior_ = false;
  std::optional<MemorySketch> sketch_;  // memory without a Prior
  Classifier memory_;                   // memory with one
  Classifier other_;
};

}  // namespace lockstep::tune
