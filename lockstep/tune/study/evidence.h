// Evidence: the models that a history of trials supports, and who leads.
#pragma once

#include <span>
#include <vector>

#include "lockstep/tune/models/acquisition.h"
#include "lockstep/tune/models/prior.h"
#include "lockstep/tune/study/trial.h"

namespace lockstep::tune {

class Evidence {
 public:
  // Baseline, explore and replicate trials make the models: what was measured after the choice of the winner must not
  // steer it. `space` and `prior` (may be null) outlive this.
  Evidence(const Space& space, const Prior* prior, std::span<const Trial> history);
  Evidence(const Evidence&) = delete;
  Evidence& operator=(const Evidence&) = delete;

  // Configurations that ran (and ran at least as often as they failed), best posterior mean first; each once.
  const std::vector<Candidate>& leaders() const { return leaders_; }
  const std::vector<Config>& failed() const { return failed_; }
  std::int64_t failures() const { return failures_; }
  bool has_run(const Config& config) const;
  const Beliefs& beliefs() const { return beliefs_; }

  // Trials under way count as done, at what the model expects of them.
  void pretend(std::span<const Trial> pending);

 private:
  SpeedSketch sketch_;
  Beliefs beliefs_;
  Feasibility feasibility_;
  std::vector<Candidate> leaders_;
  std::vector<Config> ran_;
  std::vector<Config> failed_;
  std::int64_t failures_ = 0;
};

// Speed models of all trials of a study, whatever their purpose: for importance and plots, not for choosing.
Surrogate fit_all(const Space& space, const Prior* prior, std::span<const Trial> history);

}  // namespace lockstep::tune
