// Acquisition: what is worth trying next, given a model of speed and a model of failure.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/tune/models/feasibility.h"
#include "lockstep/tune/models/prior.h"
#include "lockstep/tune/models/speed_sketch.h"
#include "lockstep/tune/models/surrogate.h"
#include "lockstep/tune/space/space.h"

namespace lockstep::tune {

struct Candidate {
  Config config;
  std::vector<double> coordinates;
  double prior_log_throughput = 0;
  double prior_fits = 1;
  double runs = 1;  // probability that it runs
  Posterior speed;
  double improvement = 0;  // expected, over an incumbent
  double score = 0;
};

// The two models, and the prior or sketch they were fitted with (may be null). Speed is absent while nothing ran.
struct Beliefs {
  const Space* space = nullptr;
  const Prior* prior = nullptr;
  const SpeedSketch* sketch = nullptr;  // replaces a prior of speed; null where there is one
  double prior_reference = 0;           // Belief::log_throughput of the default, taken from every other
  std::optional<Surrogate> speed;
  const Feasibility* feasibility = nullptr;
  const std::vector<Config>* ran = nullptr;  // no doubt about these
};

struct AcquisitionOptions {
  double incumbent = 0;            // posterior mean of the best configuration that ran
  double least_probability = 0.2;  // of running; a candidate below is taken only when there is none above
  double caution = 1.3;            // power of that probability in the score: a failure costs a trial
  std::vector<Config> starts;      // local searches start here (the leaders)
  std::vector<Config> exclude;     // failed before, or under way
  std::uint64_t seed = 1;
};

// Fills everything but `score` and `improvement`.
Candidate judge(const Beliefs& beliefs, Config config);

// The best candidate found by random sampling and local search from the starts; nullopt when the space has nothing
// left beyond `exclude`.
std::optional<Candidate> most_promising(const Beliefs& beliefs, const AcquisitionOptions& options);

// While too little is known to expect anything: of random valid configurations the one that repeats least, knob by
// knob, of what was tried (`coordinates` of theirs), less those that hardly run. Not the farthest: in ten dimensions
// those are corners, and corners fail or crawl.
std::optional<Candidate> spread_out(const Beliefs& beliefs, const AcquisitionOptions& options,
                                    std::span<const std::vector<double>> tried);

}  // namespace lockstep::tune
