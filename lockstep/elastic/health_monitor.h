// HealthMonitor: runs the health checks of a node before and during a run, each kind on a thread of its own, so that a
// file system or a driver that hangs holds up nobody.
//
//   HealthMonitor monitor({.folders = {...}, .gpus = true});
//   for (const Finding& finding : monitor.first()) ...    // every check once: refuse what is fatal
//   for (const Finding& finding : monitor.take()) ...     // now and then: what is new
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/elastic/finding.h"
#include "lockstep/elastic/gpu_state.h"
#include "lockstep/elastic/node_checks.h"
#include "lockstep/elastic/repeater.h"

namespace lockstep::elastic {

struct HealthOptions {
  std::vector<WatchedFolder> folders;
  double needed_memory = 0.0;           // what the ranks of this node will take; 0: not known
  std::vector<std::string> interfaces;  // that other nodes are reached over
  std::optional<NodeList> nodes;        // the others are tried before the start
  bool gpus = false;                    // the run computes on GPUs; where it does not, nothing of them is fatal
  std::string kernel_log = "/dev/kmsg";
  double kernel_log_seconds = 3600.0;  // older lines of it are not held against the node
  std::string root = "/";              // of /proc and /sys
  std::function<std::unique_ptr<Gpus>()> open_gpus = [] { return open_nvml(); };
  double pace = 1.0;             // times the usual pauses between two rounds (a second for the log, 30 s for disks)
  double answer_seconds = 10.0;  // a check that takes longer hangs
};

// $LOCKSTEP_KERNEL_LOG and $LOCKSTEP_NVML, where they are set, in place of the usual ones.
HealthOptions health_options_from_environment();

class HealthMonitor {
 public:
  // The checks begin at once.
  explicit HealthMonitor(HealthOptions options);

  // What the first round found, also what is well; waits for it, at most `answer_seconds`.
  std::vector<Finding> first();
  // What was found since the last call and first(), without what is well. The same is not told again before ten minutes
  // have passed, unless it got worse. Never waits.
  std::vector<Finding> take();
  // The processes whose memory is told.
  void watch_processes(std::vector<int> pids);

 private:
  struct Shared;
  struct Lane;
  void add(const std::string& name, double every_seconds, std::function<std::vector<Finding>(Moment)> look);

  HealthOptions options_;
  std::shared_ptr<Shared> shared_;
  std::vector<Repeater> threads_;
};

}  // namespace lockstep::elastic
