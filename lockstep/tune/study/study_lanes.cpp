#include "lockstep/tune/study/study_lanes.h"

#include <chrono>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"

namespace lockstep::tune {

Lanes::Lanes(const std::vector<std::unique_ptr<Evaluator>>& evaluators) : lanes_(evaluators.size()) {
  LOCKSTEP_ASSERT(!evaluators.empty(), "a study needs an evaluator");
  for (std::size_t i = 0; i < lanes_.size(); ++i) {
    lanes_[i].evaluator = evaluators[i].get();
    lanes_[i].thread = std::thread([this, i] { work(i); });
  }
}

Lanes::~Lanes() {
  halt_ = true;
  {
    const std::lock_guard lock(mutex_);
    closing_ = true;
  }
  wake_lanes_.notify_all();
  for (Lane& lane : lanes_) lane.thread.join();
}

std::optional<std::size_t> Lanes::idle() const {
  const std::lock_guard lock(mutex_);
  for (std::size_t i = 0; i < lanes_.size(); ++i)
    if (!lanes_[i].busy) return i;
  return std::nullopt;
}

std::size_t Lanes::running() const {
  const std::lock_guard lock(mutex_);
  std::size_t count = 0;
  for (const Lane& lane : lanes_) count += lane.busy ? 1 : 0;
  return count;
}

void Lanes::start(std::size_t lane, EvaluationRequest request) {
  request.stop = &halt_;
  {
    const std::lock_guard lock(mutex_);
    LOCKSTEP_ASSERT(!lanes_[lane].busy, "the lane is taken");
    lanes_[lane].busy = true;
    lanes_[lane].request = std::move(request);
  }
  wake_lanes_.notify_all();
}

std::optional<LaneResult> Lanes::wait(double timeout_seconds) {
  std::unique_lock lock(mutex_);
  wake_owner_.wait_for(lock, std::chrono::duration<double>(timeout_seconds), [&] { return !results_.empty(); });
  if (results_.empty()) return std::nullopt;
  LaneResult result = std::move(results_.front());
  results_.pop_front();
  lanes_[result.lane].busy = false;
  return result;
}

void Lanes::work(std::size_t number) {
  Lane& lane = lanes_[number];
  while (true) {
    EvaluationRequest request;
    {
      std::unique_lock lock(mutex_);
      wake_lanes_.wait(lock, [&] { return closing_ || lane.request; });
      if (closing_) break;
      request = std::move(*lane.request);
      lane.request.reset();
    }
    LaneResult result;
    result.lane = number;
    const Stopwatch watch;
    try {
      result.measurement = lane.evaluator->evaluate(request);
    } catch (...) {
      result.error = std::current_exception();
    }
    result.wall_seconds = watch.seconds();
    {
      const std::lock_guard lock(mutex_);
      results_.push_back(std::move(result));
    }
    wake_owner_.notify_one();
  }
  lane.evaluator->finish();
}

}  // namespace lockstep::tune
