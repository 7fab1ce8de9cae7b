// Evaluator: runs one configuration and says how fast it was.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/tune/study/trial.h"

namespace lockstep::tune {

struct EvaluationRequest {
  std::int64_t trial = 0;
  Config config;
  double budget_seconds = 0;  // the evaluation must be over by then; it is killed when it is not
  // Called with all samples so far whenever one arrives; false ends the evaluation (racing). May be empty.
  std::function<bool(std::span<const double> samples)> keep_going;
  // Set by Ctrl-C: end soon, the result will be thrown away. May be null.
  const std::atomic<bool>* stop = nullptr;
  // No grace beyond this: the study could not pay for it. 0: no such limit.
  double hard_seconds = 0;
};

struct Measurement {
  Outcome outcome = Outcome::kMeasured;
  std::vector<double> samples;
  std::map<std::string, double> values;  // what else it measured (objectives/objective.h)
  double seconds = 0;                    // as charged to the budget: launch, warm-up and failure included
  double waited_seconds = 0;             // of the evaluation's wall time, while it held no device: not charged
  bool stopped_early = false;
  std::string message;
};

// Not thread-safe; a study that runs trials in parallel has one Evaluator per lane.
class Evaluator {
 public:
  virtual ~Evaluator() = default;
  // Blocks for at most budget_seconds and a short grace. Failures of the configuration are outcomes; only what makes
  // every further trial pointless (worker cannot be started) is thrown as UserError.
  virtual Measurement evaluate(const EvaluationRequest& request) = 0;
  // Devices that this configuration holds while it runs (on CPUs: ranks).
  virtual double devices(const Config& config) const = 0;
  // After the last trial, from the thread that evaluated: end long-lived programs in an orderly way.
  virtual void finish() {}
  // Does a shorter budget give a shorter measurement? False: it may be a timeout, or the budget may be overrun.
  virtual bool adapts_to_budget() const { return true; }
  virtual std::string unit() const { return "tokens/s"; }  // of the samples
};

}  // namespace lockstep::tune
