// LocalAgent: spawns the ranks of one machine, listens to them, replaces those that fail (recovery.h), ends them
// together and names one root cause.
//
// A process gets LOCKSTEP_WORLD_SIZE, LOCKSTEP_LOCAL_WORLD_SIZE, LOCKSTEP_MASTER_ADDR / _PORT and LOCKSTEP_TOKEN (the
// agent's rendezvous store) and LOCKSTEP_MESSAGE_FD, a socket on which it writes one JSON object per line
// (elastic/engine_api.h has their meaning) and reads commands (elastic/control.h). One that takes no commands also gets
// its rank, LOCKSTEP_RANK and LOCKSTEP_LOCAL_RANK. What it prints goes to `log_folder`/rank-00003.log.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/elastic/chaos.h"
#include "lockstep/elastic/recovery.h"

namespace lockstep::elastic {

struct AgentOptions {
  std::vector<std::string> argv;  // of every rank; argv[0] is the executable
  int world = 1;
  bool commanded = false;         // processes take commands, and can be replaced; else a failure ends the run
  RecoveryLimits recovery;        // its world is the one above
  std::vector<ChaosEvent> chaos;  // faults on purpose; of commanded processes
  std::map<std::string, std::string> environment;  // added for every rank
  std::filesystem::path log_folder;
  double grace_seconds = 4.0;   // after a rank failed: for the others to notice by themselves
  double stop_seconds = 300.0;  // after a stop was asked for: to finish the step and save
};

// Why a run failed, after looking at all ranks.
struct RootCause {
  int rank = -1;
  int exit_code = 1;
  std::string message;  // one line that names the rank
};

struct AgentResult {
  int exit_code = 0;  // 0, 130 (stopped as asked), or the root cause's
  std::optional<RootCause> cause;
  int restarts = 0;
  std::int64_t lost_steps = 0;           // that were done and had to be done again
  std::vector<double> recovery_seconds;  // from each failure to the first step after it
  std::vector<ChaosEvent> chaos_left;    // that did not come to pass
};

struct AgentCallbacks {
  // Also what the agent itself has to tell ("note"), with rank -1.
  std::function<void(int rank, const nlohmann::json& message)> on_message;
  std::function<void(int rank, int pid)> on_start;
  // How often the user asked to stop: at 1 the ranks are told (SIGINT), from 2 on they are killed.
  std::function<int()> stop_requests;
};

// Blocks until every rank has ended; no rank survives the call. Must be called from a thread that lives that long (the
// ranks die with it). Throws UserError when a rank cannot be started.
AgentResult run_local_ranks(const AgentOptions& options, const AgentCallbacks& callbacks);

// How one rank ended, as the agent saw it.
struct RankEnd {
  int rank = 0;
  bool ended_by_agent = false;  // we killed it because of another rank's failure
  int exit_code = 0;
  int signal = 0;
  std::optional<nlohmann::json> error;  // the first "error" message it sent
};

// The failure that explains the others: a rank that died of a signal or reported an error of its own comes before ranks
// that merely lost a peer. nullopt when every rank ended with 0 or 130.
std::optional<RootCause> find_root_cause(const std::vector<RankEnd>& ends);

}  // namespace lockstep::elastic
