// The ledger of a study: GPU seconds spent, promised to running trials, and left.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>

#include "lockstep/tune/study/trial.h"

namespace lockstep::tune {

// What a trial that starts now may take.
struct Allowance {
  double budget_seconds = 0;  // to be over by then
  double hard_seconds = 0;    // to be killed by then; 0: no limit but the budget
};

class Ledger {
 public:
  // `limit_gpu_seconds` 0: nothing is bounded, only counted.
  Ledger(double limit_gpu_seconds, double interrupted_gpu_seconds)
      : limit_(limit_gpu_seconds), spent_(interrupted_gpu_seconds) {}

  void charge(const Trial& trial) { spent_ += trial.gpu_seconds; }
  void promise(std::int64_t trial, double gpu_seconds) { promised_[trial] = gpu_seconds; }
  void settle(std::int64_t trial) { promised_.erase(trial); }

  double spent() const { return spent_; }  // attempts that were cut off included
  // Neither spent nor promised; infinite without a limit.
  double left() const;

  // nullopt: what is left does not pay for `needed_seconds` on so many devices.
  std::optional<Allowance> allow(double wanted_seconds, double needed_seconds, double devices) const;

 private:
  double limit_;
  double spent_;
  std::map<std::int64_t, double> promised_;
};

// The shortest time in which a trial is worth starting, learned from those that ended. An evaluation that adapts to its
// budget needs launch and warm-up and some samples: half of the cheapest measurement so far. One that does not needs as
// long as the longest did, scaled where less than before is asked for, unless one has overrun its budget already.
double needed_seconds(std::span<const Trial> history, double wanted_seconds, bool adapts_to_budget);

}  // namespace lockstep::tune
