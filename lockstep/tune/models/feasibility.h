// Feasibility: the probability that a configuration runs at all, learned from what failed and what did not.
//
// One model per cause, because each has other knobs, and the product of their probabilities:
//   device memory  a sketch of the usual formula with its constants open (memory_sketch.h), beside a classifier that
//                  reads no names; where the planner computed the memory, a classifier around the planner's answer
//   host memory    a classifier: workers, prefetched batches, offloaded states
//   refusals       culprits among values and pairs of values (refusals.h), beside a classifier
//   time           a classifier
// Knobs on logarithmic scales make a linear classifier one of products (workers x prefetch x micro-batch). Of two
// models for one cause each counts as much as it predicted the trials. Classifiers are Gaussian processes with a probit
// link, fitted by expectation propagation (Rasmussen and Williams 2006, algorithm 3.5). Immutable once fitted;
// thread-safe.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "lockstep/tune/models/linear_algebra.h"
#include "lockstep/tune/models/memory_sketch.h"
#include "lockstep/tune/models/refusals.h"
#include "lockstep/tune/space/space.h"
#include "lockstep/tune/study/trial.h"

namespace lockstep::tune {

struct FeasibilityPoint {
  Config config;
  std::vector<double> coordinates;  // Space::coordinates()
  Outcome outcome = Outcome::kMeasured;
  std::string message = {};  // of a failure
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
    double predictive_score = 0;              // sum of log probabilities of each observation given the others
    double usual = 0;                         // latent mean where nothing else is known
    std::vector<double> slopes;  // by knob: latent loss per unit of an ordered knob, as names tell; or none

    double kernel(std::span<const double> x, std::span<const double> y, std::span<const char> ordered) const;
    double mean_at(std::span<const double> x) const;
    void learn(std::span<const std::vector<double>> features, std::span<const int> labels,
               std::span<const double> means, std::span<const char> ordered);
    // Probability at a point whose prior mean is `mean`.
    double probability(std::span<const double> x, double mean, std::span<const char> ordered) const;
  };
  enum class Cause { kNone, kDevice, kHost, kRefused, kTime };
  static Cause cause_of(const FeasibilityPoint& point);

  void believe_names(const Space& space);
  void learn_causes(const Space& space, std::span<const FeasibilityPoint> points);
  // Learns `classifier` from the points where a failure of `cause` can be told from running.
  void learn_cause(Classifier& classifier, std::span<const FeasibilityPoint> points, Cause cause);
  double memory_mean(std::span<const double> coordinates, double prior_fits) const;
  // Offsets from the default by ordered knob, choices of the others.
  std::vector<double> features(std::span<const double> coordinates) const;

  std::vector<char> ordered_;
  std::vector<double> slopes_;                      // by ordered knob: latent loss per unit of its coordinate
  std::vector<std::vector<double>> choice_losses_;  // by unordered knob and choice, against the default's
  std::vector<double> default_coordinates_;
  bool use_prior_ = false;
  Classifier planned_;                  // device memory with a Prior
  std::optional<MemorySketch> sketch_;  // without: two models,
  Classifier device_;
  double sketch_weight_ = 1;  // and how far the first is believed
  Classifier host_, time_;
  bool host_failed_ = false, time_failed_ = false;
  std::optional<Refusals> refusals_;
  Classifier other_;
  double refusals_weight_ = 1;
};

}  // namespace lockstep::tune
