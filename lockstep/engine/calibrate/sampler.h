// Timing under contention: every rank runs the same thing at the same time, over windows much longer than the
// scheduler's time slices, and all ranks end with the same figures. On an accelerator the windows are timed by its own
// events, after a warm-up, and what counts is the median.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/processor_share.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/nn/torch_compat.h"

namespace lockstep::engine {

struct Sample {
  double seconds = 0;  // of one call: mean over ranks and windows; on an accelerator the median
  double spread = 0;   // half the distance of the quartiles over the median, of all ranks' windows
};

// Collective in every method. Not thread-safe.
class Sampler {
 public:
  // A window lasts at least `window_seconds`; where one call takes longer than that, it is the only window.
  // Every collective waits at most `timeout`. `device` is where bodies queue their work.
  Sampler(comm::Communicator& communicator, double window_seconds, int windows, comm::milliseconds timeout,
          torch::Device device = torch::kCPU);

  // Calls of `body` are independent between ranks; each rank makes as many as fit its window.
  Sample independent(const std::function<void()>& body);

  // `body` is itself collective: all ranks make the same number of calls, and a call takes as long as its slowest rank.
  Sample collective(const std::function<void()>& body);

  // From now on figures are what calls take while nothing else wants the cores: seconds times the share that the rank
  // had of them (base/processor_share.h). CPU only.
  void discount_others() { discounts_others_ = true; }

  // From now on exhausted() says whether `seconds` have passed since construction; infinity takes the budget away.
  void set_budget(double seconds) { budget_seconds_ = seconds; }
  // The same answer on every rank: the slowest rank's clock decides.
  bool exhausted();

  // `value` averaged over ranks.
  double mean(double value);

  torch::Device device() const { return device_; }

  // For collectives that a body calls itself.
  const comm::OpOptions& op_options() const { return op_options_; }

 private:
  void barrier();
  double largest(double value);  // over ranks
  Sample summarize(const std::vector<double>& own_seconds);
  Sample on_device(const std::function<void()>& body);
  ProcessorTime read_processor() const;  // nothing where others are not discounted

  comm::Communicator& communicator_;
  double window_seconds_;
  int windows_;
  torch::Device device_;
  comm::OpOptions op_options_;
  Stopwatch watch_;
  double budget_seconds_ = std::numeric_limits<double>::infinity();
  bool discounts_others_ = false;
};

}  // namespace lockstep::engine
