// Study: the loop that proposes, evaluates, charges and records, until trials or budget are spent.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/tune/evaluators/evaluator.h"
#include "lockstep/tune/study/conclusion.h"
#include "lockstep/tune/study/strategy.h"

namespace lockstep::tune {

// Where trials are kept, durable before the study continues. Not thread-safe.
class Journal {
 public:
  virtual ~Journal() = default;
  // Trials that ended, by number; GPU seconds charged to evaluations that a crash cut off.
  virtual std::vector<Trial> trials() const = 0;
  virtual double interrupted_gpu_seconds() const = 0;
  // A trial starts (its number, config, purpose, started_at are set), still runs after `seconds`, has ended.
  virtual void begin(const Trial& trial) = 0;
  virtual void alive(const Trial& trial, double seconds) = 0;
  virtual void end(const Trial& trial) = 0;
  virtual void conclude(const nlohmann::json& conclusion) = 0;
};

// Keeps nothing beyond the process: tests and benchmarks.
std::unique_ptr<Journal> make_memory_journal();

struct StudyProgress {
  const Trial* ended = nullptr;        // the trial that just ended; null for a sign of life
  const Proposal* proposal = nullptr;  // of `ended`
  std::int64_t done = 0;
  std::int64_t failed = 0;
  double gpu_seconds = 0;
  double best_throughput = 0;  // observed, not the estimate
  std::size_t running = 0;
};

struct StudyResult {
  Conclusion conclusion;
  std::vector<Trial> trials;
  bool interrupted = false;
  bool out_of_budget = false;          // it ended because the GPU seconds were spent, not the trials
  double interrupted_gpu_seconds = 0;  // charged to attempts that were cut off, beyond conclusion.gpu_seconds
};

// One lane per evaluator. A trial is charged in GPU seconds (seconds x devices); no trial starts that the budget cannot
// pay, and a running one is ended when the budget is. Trials already in the journal are taken as they are.
StudyResult run_study(const Strategy& strategy, const std::vector<std::unique_ptr<Evaluator>>& lanes, Journal& journal,
                      const std::atomic<bool>* stop = nullptr,
                      const std::function<void(const StudyProgress&)>& progress = {});

}  // namespace lockstep::tune
