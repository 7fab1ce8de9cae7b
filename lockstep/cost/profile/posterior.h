// What runs that were seen say about a profile: a Gaussian posterior over the logarithms of its constants, around the
// profile, by linearised updates that are iterated (the iterated extended Kalman filter: Bell and Cathey 1993). A run
// counts with the probability that it belongs to the stack's ordinary runs; one that a mechanism slowed down (a stall)
// or that somebody typed wrongly is a finding and moves nothing. Pure: nothing here knows where runs come from.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "lockstep/cost/profile/profile.h"

namespace lockstep::cost {

// What a profile says of one run.
struct RunFigures {
  double seconds = 0;       // of a step
  double time_sigma = 0;    // of log(measured / predicted), as the profile has it
  double bytes = 0;         // peak, taken as the measurement was; 0: not known
  double memory_sigma = 0;  // of log(measured / predicted)
};

struct ObservedRun {
  std::string name;
  // Under another profile that differs from the prior in its constants alone. Called some hundred times.
  std::function<RunFigures(const Profile&)> predict;
  double seconds = 0;  // measured step; 0: not
  double bytes = 0;    // measured peak; 0: not
  double spread = 0;   // of its logarithm, beside what the posterior assumes of any run: other hardware, few steps
};

// How one run is seen once all have been.
struct RunVerdict {
  std::string name;
  double before = 0;                           // measured over predicted step: by the profile, ...
  double after = 0;                            // ... by the posterior; 0: no time was measured
  double weight = 1;                           // probability that it is an ordinary run
  double memory_before = 0, memory_after = 0;  // the same of the peak; 0: not measured
  double memory_weight = 1;
  bool is_outlier() const { return weight < 0.5; }
};

struct ChangedConstant {
  std::string name;
  double factor = 1;    // of the value
  double informed = 0;  // share of its prior variance that is gone, 0 .. 1
};

struct PosteriorSpread {
  double time = 0, memory = 0;  // standard deviations of log(measured / predicted) of a run that comes
};

// Of log(measured / predicted) of one more run of a stack whose constants were known exactly: repetitions, and what
// no formula sees.
inline constexpr double kRunSigma = 0.05;
inline constexpr double kRunMemorySigma = 0.04;

class Posterior {
 public:
  // Runs that cannot be priced under `prior` (predict throws or gives no seconds) are left out; the rest are used in
  // the order given, at most kMostRuns of them. Without any it is the prior.
  static constexpr std::size_t kMostRuns = 48;
  Posterior(Profile prior, const std::vector<ObservedRun>& runs);

  // The prior with the constants and the residuals of the posterior: for runs like those observed.
  const Profile& profile() const { return profile_; }
  const std::vector<RunVerdict>& verdicts() const { return verdicts_; }
  // Those that moved or were informed by 2% and more, the best informed first.
  std::vector<ChangedConstant> changes() const;
  // Of one run in particular, by how its prediction depends on the constants.
  PosteriorSpread spread_of(const std::function<RunFigures(const Profile&)>& predict) const;

 private:
  struct Update;
  void take_over(const Update& update);

  Profile prior_, profile_;
  std::vector<double> offsets_;                  // of the logarithms, by parameter
  std::vector<double> prior_variance_;           // by parameter
  std::vector<std::vector<double>> covariance_;  // of the offsets
  std::vector<RunVerdict> verdicts_;
  std::size_t used_ = 0;
};

// The constants a posterior moves: those of constant_table() and the reserve for a fitted profile; of a calibrated
// machine, factors on what its tables say.
struct ProfileParameter {
  std::string name;
  double spread = 0;  // of the logarithm, between stacks on one kind of hardware
  bool is_memory = false;
};
std::vector<ProfileParameter> parameters_of(const Profile& profile);
// The profile with its parameters multiplied by exp(offsets), inside their bounds.
Profile moved(const Profile& profile, const std::vector<double>& offsets);

}  // namespace lockstep::cost
