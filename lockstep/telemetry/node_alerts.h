// The rules that look at a run from outside: at its ranks, nodes and disks. For the agent that leads; see alerts.h.
//
// No clocks, no files, no threads. Times are seconds of any one clock that does not go back.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/telemetry/alerts.h"
#include "lockstep/telemetry/condition.h"
#include "lockstep/telemetry/robust.h"

namespace lockstep::telemetry {

inline constexpr double kUsualSteps = 10.0;      // heartbeat: never less than so many
inline constexpr double kCheckpointsLeft = 1.2;  // disk_filling: the room that the next checkpoint must find

class NodeAlerts {
 public:
  explicit NodeAlerts(const AlertContext& context) : context_(context) {}

  // heartbeat: the run got on. `step` that is done; the same one again: something else went on (an evaluation, a save).
  std::vector<Alert> advanced(std::int64_t step, double now);
  // Ranks start or recover from `now` on: no step is expected before the next advanced().
  void waits(double now);
  // At least every few seconds.
  std::vector<Alert> tick(double now);

  // straggler: how long each rank was busy in a step of `step_seconds`, without what it waited for others, over the
  // last `seconds` (at least a step).
  std::vector<Alert> ranks_were_busy(const std::map<int, double>& seconds_by_rank, double step_seconds, double seconds);

  // disk_filling: what is free where checkpoints go. `needed_bytes`: of the next one; 0: unknown.
  std::vector<Alert> disk_is(const std::string& node, double free_bytes, double needed_bytes, double now);

  // node_health: `check` of `node` found `what`; "": it is well again.
  std::vector<Alert> node_is(const std::string& node, const std::string& check, const std::string& what,
                             const std::string& fix);

 private:
  struct Disk {
    std::deque<std::pair<double, double>> free;  // time and bytes, oldest first
    Condition condition{3, 3, 3};
  };
  struct Straggler {
    Condition condition;
    RecentValues shares{5};
  };

  std::vector<Alert> told(Alert alert) const;

  const AlertContext context_;
  std::optional<double> last_advance_;  // none: nothing is expected
  std::int64_t last_step_ = -1;
  RecentValues intervals_{32};
  bool silent_ = false;
  std::map<int, Straggler> ranks_;
  std::map<std::string, Disk> disks_;
  std::map<std::string, std::string> ailing_;  // what was found, by node and check
};

}  // namespace lockstep::telemetry
