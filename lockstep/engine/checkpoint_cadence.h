// CheckpointCadence: when the next checkpoint begins. A cadence that the job gives is kept as given. With `auto` it
// begins with the plan's and is chosen anew after every save (planner/cadence.h) from
//
//   the stall        the median of the last saves, each the largest of all ranks
//   the write        the longest of the last saves, from their beginning until they were durable
//   the failures     seen so far, against the rate that was assumed (planner::expected_failure_rate)
//
// Where the cluster's storage is not known, the first save begins at half of checkpoint.max_lost.
//
// The interval never makes two saves overlap. Otherwise checkpoint.max_lost is a hard bound: the newest durable
// checkpoint is never older than that, the time that the next one takes to be written and a step included.
//
// No clocks, no communication: the first rank has one and tells the others when a save is due.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/planner/cadence.h"
#include "lockstep/spec/job.h"

namespace lockstep::engine {

// What a run has been through.
struct Endured {
  std::int64_t failures = 0;  // that ranks or nodes were lost to, whatever was lost of the work
  double seconds = 0.0;
};

class CheckpointCadence {
 public:
  static constexpr std::size_t kWindow = 4;  // saves that count

  // `assumed`: of the specs (planner::cadence_question), with the bound of `policy`. `planned`: of the plan, where it
  // has one and that keeps the bound.
  CheckpointCadence(const spec::CheckpointPolicy& policy, planner::CadenceQuestion assumed,
                    const std::optional<plan::CheckpointCadence>& planned);

  bool is_chosen() const { return automatic_; }
  // Whether a save is to begin after the step that comes, `age_seconds` after the newest checkpoint began.
  bool is_due(double age_seconds) const;

  void stepped(double seconds);
  // Whether the interval is another one now.
  bool saved(double stall_seconds, double durable_seconds, const Endured& endured);
  // Before the first step, after remember(): the same. Without a save that was measured the plan's interval stays.
  bool begins(const Endured& endured);

  const plan::CheckpointCadence& now() const { return now_; }
  bool keeps_bound() const { return now_.worst_lost_seconds <= policy_.max_lost_seconds; }
  // "every 10m, a save stalls training for 50 ms and is durable after 2 s, ...".
  std::string describe() const;
  nlohmann::json figures() const;

  // What the next generation or run goes on from, kept with a checkpoint; other content is passed over.
  nlohmann::json memory() const;
  void remember(const nlohmann::json& memory);

 private:
  void count(const Endured& endured);
  bool choose();

  const spec::CheckpointPolicy policy_;
  const bool automatic_;
  planner::CadenceQuestion assumed_;
  plan::CheckpointCadence now_;
  double step_seconds_ = 0.0;
  std::vector<double> stalls_, durables_;  // of the last saves, newest last
  Endured endured_;
  double failures_per_second_ = 0.0;
};

}  // namespace lockstep::engine
