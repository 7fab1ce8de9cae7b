#include "lockstep/sim/failures/goodput.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <thread>

#include "lockstep/base/counter_random.h"
#include "lockstep/sim/event_queue.h"

namespace lockstep::sim {
namespace {

constexpr int kSpare = -1;

class Machine {
 public:
  Machine(const FaultTrace& faults, const RunOnNodes& run)
      : faults_(faults), run_(run), place_of_(run.nodes + run.spares, kSpare) {
    std::iota(place_of_.begin(), place_of_.begin() + run.nodes, 0);
    faults_of_.resize(place_of_.size());
    for (int node = run.nodes; node < run.nodes + run.spares; ++node) idle_.push_back(node);
    replicas_ = whole_ = run.nodes / run.nodes_per_replica;
  }

  Outcome go() {
    for (std::size_t i = 0; i < faults_.faults.size(); ++i) {
      const Fault& fault = faults_.faults[i];
      if (fault.node >= static_cast<int>(place_of_.size())) continue;
      handle(fault.begin);
      fails(fault);
    }
    handle(faults_.seconds);
    if (state_ == State::kRunning) trained(faults_.seconds, false);
    if (state_ == State::kWaiting) outcome_.waiting += faults_.seconds - since_;
    if (state_ == State::kRecovering) outcome_.recovering += faults_.seconds - since_;
    outcome_.total = faults_.seconds;
    return outcome_;
  }

 private:
  enum class State { kRunning, kRecovering, kWaiting };
  static constexpr std::uint32_t kResume = 0xffffffffU;  // else a node that is repaired

  // Everything that happens before `until`.
  void handle(double until) {
    while (!queue_.empty() && queue_.next_time() < until) {
      const auto [time, what] = queue_.pop();
      ++outcome_.events;
      if (what == kResume) {
        if (state_ == State::kRecovering && time == resume_at_) resumes(time);
      } else {
        repaired(static_cast<int>(what), time);
      }
    }
  }

  void fails(const Fault& fault) {
    ++outcome_.events;
    if (fault.end < faults_.seconds) queue_.add(fault.end, static_cast<std::uint32_t>(fault.node));
    if (faults_of_[fault.node]++ > 0) return;  // it is down already
    const int place = place_of_[fault.node];
    if (place == kSpare) {
      std::erase(idle_, fault.node);
      return;
    }
    place_of_[fault.node] = kSpare;
    empty_.push_back(place);
    interrupted(place, fault.begin);
  }

  void interrupted(int place, double time) {
    if (state_ == State::kRunning) {
      ++outcome_.interruptions;
      lost_places_.clear();
      disk_ = !run_.from_memory;
      leave_running(time);
    } else {
      (state_ == State::kWaiting ? outcome_.waiting : outcome_.recovering) += time - since_;
      since_ = time;
    }
    // The copy of a node's state is on the next one.
    const auto holds_copy = [&](int other) {
      return other == (place + 1) % run_.nodes || place == (other + 1) % run_.nodes;
    };
    if (std::any_of(lost_places_.begin(), lost_places_.end(), holds_copy) && !disk_) from_disk();
    lost_places_.push_back(place);
    recover(time);
  }

  // The last stretch of training ends here; what is lost of it is known when it is clear where the state comes from.
  void leave_running(double time) {
    if (disk_) ++outcome_.from_disk;
    trained(time, true);
    since_ = time;
  }

  // Copies in memory turned out to be gone.
  void from_disk() {
    disk_ = true;
    ++outcome_.from_disk;
    const double more = std::max(0.0, at_risk_ - lost_now_);
    outcome_.useful -= more;
    outcome_.lost += more;
    lost_now_ += more;
    outcome_.worst_lost = std::max(outcome_.worst_lost, lost_now_);
  }

  // Accounts for training since since_. Work that no durable checkpoint has is `at_risk_`.
  void trained(double time, bool interrupted_here) {
    const double elapsed = time - since_, speed = static_cast<double>(replicas_) / static_cast<double>(whole_);
    const double interval = run_.interval_seconds;
    const double begun = std::isfinite(interval) ? std::floor(elapsed / interval) : 0.0;
    // The n-th checkpoint stalls at the end of its interval.
    const double into = std::isfinite(interval) ? elapsed - begun * interval : elapsed;
    const double stall = begun * run_.stall_seconds +
                         (std::isfinite(interval) ? std::max(0.0, into - (interval - run_.stall_seconds)) : 0.0);
    const double work = elapsed - stall;
    outcome_.stalled += stall;
    outcome_.shrunk += work * (1.0 - speed);
    double lost = 0.0;
    if (interrupted_here) {
      const double durable = std::isfinite(interval) && elapsed > run_.background_seconds
                                 ? std::floor((elapsed - run_.background_seconds) / interval)
                                 : 0.0;
      at_risk_ = (work - durable * (interval_work())) * speed + (durable > 0 ? 0.0 : carried_);
      lost = disk_ ? at_risk_ : std::min(run_.memory_lost_seconds * speed, work * speed);
      lost_now_ = lost;
      outcome_.worst_lost = std::max(outcome_.worst_lost, lost);
    }
    outcome_.useful += work * speed - lost;
    outcome_.lost += lost;
  }

  double interval_work() const {
    return std::isfinite(run_.interval_seconds) ? run_.interval_seconds - run_.stall_seconds : 0.0;
  }

  // Fills the places that are empty and says when training goes on, or waits.
  void recover(double time) {
    fill();
    int wanted = whole_;
    if (!empty_.empty()) {
      if (run_.when_short == WhenShort::kWait) {
        state_ = State::kWaiting;
        return;
      }
      wanted = (run_.nodes - static_cast<int>(empty_.size())) / run_.nodes_per_replica;
      if (wanted == 0) {
        state_ = State::kWaiting;
        return;
      }
    }
    const bool resizes = wanted != replicas_;
    next_replicas_ = wanted;
    state_ = State::kRecovering;
    resume_at_ = time + run_.detect_seconds + (disk_ ? run_.disk_restart_seconds : run_.memory_restart_seconds) +
                 (resizes ? run_.resize_seconds : 0.0);
    queue_.add(resume_at_, kResume);
  }

  void fill() {
    for (; !empty_.empty() && !idle_.empty(); empty_.pop_back(), idle_.pop_back())
      place_of_[idle_.back()] = empty_.back();
  }

  void resumes(double time) {
    outcome_.recovering += time - since_;
    if (next_replicas_ != replicas_) ++outcome_.resizes;
    replicas_ = next_replicas_;
    // Work that came back from memory is still in no checkpoint.
    carried_ = disk_ ? 0.0 : std::max(0.0, at_risk_ - lost_now_);
    state_ = State::kRunning;
    since_ = time;
  }

  void repaired(int node, double time) {
    if (--faults_of_[node] > 0) return;
    idle_.push_back(node);
    if (empty_.empty()) return;
    if (state_ == State::kWaiting) {
      outcome_.waiting += time - since_;
      since_ = time;
      recover(time);
    } else if (state_ == State::kRunning) {
      const int possible =
          (run_.nodes - static_cast<int>(empty_.size()) + static_cast<int>(idle_.size())) / run_.nodes_per_replica;
      if (std::min(possible, whole_) <= replicas_) return;
      // Growing takes a pause, and nothing is lost.
      disk_ = false;
      trained(time, false);
      at_risk_ = lost_now_ = 0.0;
      since_ = time;
      fill();
      next_replicas_ = std::min(possible, whole_);
      state_ = State::kRecovering;
      resume_at_ = time + run_.resize_seconds;
      queue_.add(resume_at_, kResume);
    }
  }

  const FaultTrace& faults_;
  const RunOnNodes& run_;
  std::vector<int> place_of_;  // in the run, by node
  std::vector<int> faults_of_;
  std::vector<int> idle_;   // in service, without a place
  std::vector<int> empty_;  // places without a node
  int whole_ = 1, replicas_ = 1, next_replicas_ = 1;
  State state_ = State::kRunning;
  double since_ = 0.0;  // the state is what it is
  double resume_at_ = 0.0;
  bool disk_ = false;
  double at_risk_ = 0.0, lost_now_ = 0.0, carried_ = 0.0;
  std::vector<int> lost_places_;
  EventQueue queue_;
  Outcome outcome_;
};

}  // namespace

Outcome run_through(const FaultTrace& faults, const RunOnNodes& run) { return Machine(faults, run).go(); }

Quantiles quantiles(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const auto at = [&](double share) {
    return values[static_cast<std::size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
  };
  return {at(0.05), at(0.5), at(0.95),
          std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size())};
}

std::vector<Outcome> study(const FaultSource& source, const RunOnNodes& run, double seconds, int samples,
                           std::uint64_t seed, int threads) {
  std::vector<Outcome> outcomes(static_cast<std::size_t>(samples));
  const auto work = [&](int first) {
    for (int i = first; i < samples; i += threads) {
      outcomes[static_cast<std::size_t>(i)] =
          run_through(source.draw(run.nodes + run.spares, seconds, combine(seed, static_cast<std::uint64_t>(i))), run);
    }
  };
  std::vector<std::jthread> others;
  for (int i = 1; i < threads; ++i) others.emplace_back(work, i);
  work(0);
  return outcomes;
}

}  // namespace lockstep::sim
