#include "lockstep/tune/study/evidence.h"

#include <algorithm>
#include <cmath>

namespace lockstep::tune {
namespace {

double prior_reference(const Space& space, const Prior* prior) {
  if (prior == nullptr) return 0;
  const std::optional<Belief> belief = (*prior)(space.default_config());
  return belief ? belief->log_throughput : 0;
}

Belief belief_about(const Prior* prior, const Config& config, double reference) {
  Belief belief{0, 1};
  if (prior == nullptr) return belief;
  if (const std::optional<Belief> known = (*prior)(config))
    belief = {known->log_throughput - reference, known->fits_probability};
  return belief;
}

bool steers(const Trial& trial) { return trial.purpose <= Purpose::kReplicate; }

Observation observe(const Space& space, const Trial& trial, const Belief& belief) {
  Observation observation;
  observation.coordinates = space.coordinates(trial.config);
  observation.log_throughput = std::log(trial.throughput);
  // A launch that ran its time has only the noise that all share; one that was cut short is known less well.
  if (trial.stopped_early) observation.extra_variance = trial.relative_error * trial.relative_error;
  observation.prior_log_throughput = belief.log_throughput;
  observation.moment = static_cast<double>(trial.number);
  return observation;
}

Feasibility learn_feasibility(const Space& space, const Prior* prior, std::span<const Trial> history) {
  std::vector<FeasibilityPoint> points;
  for (const Trial& trial : history) {
    if (measured(trial) && trial.purpose > Purpose::kExplore) continue;  // saying it once is enough
    points.push_back({trial.config, space.coordinates(trial.config), trial.outcome, trial.message,
                      belief_about(prior, trial.config, 0).fits_probability});
  }
  return Feasibility::fit(space, points, prior != nullptr);
}

}  // namespace

Evidence::Evidence(const Space& space, const Prior* prior, std::span<const Trial> history)
    : sketch_(space), feasibility_(learn_feasibility(space, prior, history)) {
  beliefs_.space = &space;
  beliefs_.prior = prior;
  const bool use_sketch = prior == nullptr;
  if (use_sketch) beliefs_.sketch = &sketch_;
  beliefs_.prior_reference =
      use_sketch ? sketch_.log_throughput(space.default_config()) : prior_reference(space, prior);
  beliefs_.feasibility = &feasibility_;
  std::vector<Observation> observations;
  struct Tally {
    Config config;
    int ran = 0;
    int failed = 0;
    bool steered = false;  // ran before the winner was chosen
  };
  std::vector<Tally> tallies;
  for (const Trial& trial : history) {
    auto tally = std::find_if(tallies.begin(), tallies.end(), [&](const Tally& t) { return t.config == trial.config; });
    if (tally == tallies.end()) tally = tallies.insert(tallies.end(), Tally{trial.config});
    ++(measured(trial) ? tally->ran : tally->failed);
    if (!measured(trial)) ++failures_;
    if (!measured(trial) || !steers(trial)) continue;
    tally->steered = true;
    Belief belief = belief_about(prior, trial.config, beliefs_.prior_reference);
    if (use_sketch) belief.log_throughput = sketch_.log_throughput(trial.config) - beliefs_.prior_reference;
    observations.push_back(observe(space, trial, belief));
  }
  if (!observations.empty())
    beliefs_.speed = Surrogate::fit(space, std::move(observations), prior != nullptr || use_sketch);
  for (const Tally& tally : tallies)
    if (tally.ran > 0 && tally.failed == 0) ran_.push_back(tally.config);
  beliefs_.ran = &ran_;
  for (const Tally& tally : tallies) {
    if (tally.steered && tally.ran >= tally.failed) leaders_.push_back(judge(beliefs_, tally.config));
    if (tally.failed > 0) failed_.push_back(tally.config);
  }
  std::stable_sort(leaders_.begin(), leaders_.end(),
                   [](const Candidate& a, const Candidate& b) { return a.speed.mean > b.speed.mean; });
}

bool Evidence::has_run(const Config& config) const {
  return std::any_of(leaders_.begin(), leaders_.end(), [&](const Candidate& c) { return c.config == config; });
}

void Evidence::pretend(std::span<const Trial> pending) {
  if (!beliefs_.speed) return;
  for (const Trial& trial : pending) {
    const Candidate candidate = judge(beliefs_, trial.config);
    beliefs_.speed = beliefs_.speed->with_pretended(candidate.coordinates, candidate.prior_log_throughput);
  }
}

Surrogate fit_all(const Space& space, const Prior* prior, std::span<const Trial> history) {
  const double reference = prior_reference(space, prior);
  std::vector<Observation> observations;
  for (const Trial& trial : history)
    if (measured(trial)) observations.push_back(observe(space, trial, belief_about(prior, trial.config, reference)));
  return Surrogate::fit(space, std::move(observations), prior != nullptr);
}

}  // namespace lockstep::tune
