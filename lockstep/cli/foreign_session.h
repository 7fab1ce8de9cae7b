// A run of anybody's program: started as `lockstep launch` was told, shown, recorded, and begun again when it fails.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cli/launch_flags.h"
#include "lockstep/elastic/node_list.h"
#include "lockstep/spec/job.h"

namespace lockstep::cli {

struct ForeignRequest {
  std::vector<std::string> argv;
  std::string name;
  int processes = 1;                   // on each node
  std::vector<int> node_counts = {1};  // largest first
  std::optional<elastic::NodeList> nodes;
  std::string token;  // of several nodes
  int restarts = 3;
  double leave_seconds = 10.0;  // between SIGTERM and SIGKILL after a failure
  double stop_seconds = 30.0;   // after a stop was asked for
  std::string role = "default";
  std::string id;         // "": the run's
  std::string interface;  // "": by route
  std::string log_dir;    // "": the run's folder
  spec::NodeChecks checks = spec::NodeChecks::kAct;
  bool record = true, json = false;
};

// What must be the same on every node.
std::string digest_of(const ForeignRequest& request);

// Blocks until the run is over and returns the exit code: 0, 130, 75, or the root cause's (128 and the number for a
// signal). Throws UserError when the program cannot be started.
int run_foreign(const ForeignRequest& request, const Shown& shown);

}  // namespace lockstep::cli
