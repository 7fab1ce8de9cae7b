// Timing under contention: every rank runs the same thing at the same time, over windows much longer than the
// scheduler's time slices, and all ranks end with the same figures.
#pragma once

#include <functional>
#include <vector>

#include "lockstep/comm/communicator.h"

namespace lockstep::engine {

struct Sample {
  double seconds = 0;  // of one call: mean over ranks and windows
  double spread = 0;   // half the distance of the quartiles over the median, of all ranks' windows
};

// Collective in every method. Not thread-safe.
class Sampler {
 public:
  // A window lasts at least `window_seconds`, or one call where that is longer.
  // Every collective waits at most `timeout`.
  Sampler(comm::Communicator& communicator, double window_seconds, int windows, comm::milliseconds timeout);

  // Calls of `body` are independent between ranks; each rank makes as many as fit its window.
  Sample independent(const std::function<void()>& body);

  // `body` is itself collective: all ranks make the same number of calls, and a call takes as long as its slowest rank.
  Sample collective(const std::function<void()>& body);

  // `value` averaged over ranks.
  double mean(double value);

  // For collectives that a body calls itself.
  const comm::OpOptions& op_options() const { return op_options_; }

 private:
  void barrier();
  Sample summarize(const std::vector<double>& own_seconds);

  comm::Communicator& communicator_;
  double window_seconds_;
  int windows_;
  comm::OpOptions op_options_;
};

}  // namespace lockstep::engine
