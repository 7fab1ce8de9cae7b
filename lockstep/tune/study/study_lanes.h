// Lanes: evaluators at work, one thread each. Results come back to the one thread that owns the study.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "lockstep/tune/evaluators/evaluator.h"

namespace lockstep::tune {

struct LaneResult {
  std::size_t lane = 0;
  Measurement measurement;
  double wall_seconds = 0;   // of the whole evaluation
  std::exception_ptr error;  // what makes further trials pointless
};

// Used from one thread. The destructor halts what runs and waits for it (an evaluation ends soon when asked to).
class Lanes {
 public:
  explicit Lanes(const std::vector<std::unique_ptr<Evaluator>>& evaluators);
  ~Lanes();
  Lanes(const Lanes&) = delete;
  Lanes& operator=(const Lanes&) = delete;

  std::optional<std::size_t> idle() const;  // the lowest lane that has nothing to do
  std::size_t running() const;
  // `request.stop` is set here.
  void start(std::size_t lane, EvaluationRequest request);
  // The next result, or nullopt after `timeout_seconds`.
  std::optional<LaneResult> wait(double timeout_seconds);
  // Asks every evaluation to end; their results still arrive.
  void halt() { halt_ = true; }

 private:
  struct Lane {
    Evaluator* evaluator = nullptr;
    std::optional<EvaluationRequest> request;  // to be taken by the thread
    bool busy = false;                         // until its result was handed out
    std::thread thread;
  };
  void work(std::size_t lane);

  mutable std::mutex mutex_;
  std::condition_variable wake_lanes_, wake_owner_;
  std::vector<Lane> lanes_;
  std::deque<LaneResult> results_;
  std::atomic<bool> halt_ = false;
  bool closing_ = false;
};

}  // namespace lockstep::tune
