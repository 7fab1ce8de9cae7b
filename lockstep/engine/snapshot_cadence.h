// SnapshotCadence: after how many steps the next snapshot is taken. With `auto` it measures what snapshots cost and
// chooses the smallest number of steps that keeps them below kShare of the time. No clocks, no communication: every
// rank makes the same calls, and what one measures goes through `agree`, which returns the worst of all ranks.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "lockstep/spec/job.h"

namespace lockstep::engine {

class SnapshotCadence {
 public:
  static constexpr double kShare = 0.02;
  static constexpr std::int64_t kMost = 1000;  // steps
  static constexpr std::size_t kWindow = 8;    // snapshots between two decisions

  explicit SnapshotCadence(std::int64_t every);  // spec::Snapshots::every, not 0

  // What a snapshot takes with nothing beside it: one that overlaps with a step costs no more.
  void took_alone(double seconds) { alone_seconds_ = seconds; }

  // Measured on this rank; the same on every rank when it comes back. {cost of a snapshot, step without}, in seconds.
  using Figures = std::array<double, 2>;
  using Agree = std::function<Figures(Figures mine)>;

  // A step was done. `after_snapshot`: the first one after a snapshot, which was in flight; `stall_seconds`: what it
  // waited in it and for it. Returns whether every() changed, or was decided for the first time.
  bool stepped(double seconds, bool after_snapshot, double stall_seconds, const Agree& agree);

  std::int64_t every() const { return every_; }
  bool is_chosen() const { return automatic_; }
  double cost_share() const { return share_; }  // of the time, as measured last; 0 before

 private:
  bool decide(const Agree& agree);

  bool automatic_ = false;
  bool decided_ = false;
  std::int64_t every_ = 1;
  double share_ = 0.0;
  double alone_seconds_ = std::numeric_limits<double>::infinity();
  std::vector<double> with_, without_, stalls_;  // seconds, since the last decision
};

}  // namespace lockstep::engine
