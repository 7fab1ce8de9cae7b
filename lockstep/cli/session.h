// A session: one Job taken from plan to result on this machine, or this process's part of it under a foreign launcher.
// `train`, `calibrate` and `demo` are thin over it.
#pragma once

#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/elastic/node_list.h"
#include "lockstep/elastic/rank_environment.h"
#include "lockstep/elastic/rank_request.h"
#include "lockstep/plan/plan.h"
#include "lockstep/planner/profile_source.h"
#include "lockstep/planner/smaller_worlds.h"
#include "lockstep/spec/job.h"

namespace lockstep::cli {

struct SessionOptions {
  std::string verb = "train";  // or "calibrate"
  std::string backend;         // "": the job's, else by where we run
  elastic::Resume resume = elastic::Resume::kNever;
  std::string resume_from;      // checkpoint or run folder; "": the last run of this job
  bool accept_changes = false;  // resume although other samples come than before
  bool record = true;
  elastic::RankOptions verb_options;
  std::FILE* display = stdout;                              // progress and notes; nullptr: silent
  std::function<void(const nlohmann::json& step)> on_step;  // every step of the first rank; may be empty
  std::function<void(const std::string& run_id)> on_run;    // before it starts; may be empty
  std::string chaos;                                        // faults on purpose (elastic/chaos.h); "": none
  std::string title;
  std::optional<plan::Plan> plan;  // null: none; its prediction is recorded with the run
  planner::SmallerWorlds smaller;  // for when nodes are lost
  std::string joining;             // job_digest() before the plan was followed: what nodes say when they meet
};

struct SessionResult {
  int exit_code = 0;
  std::string run_id;
  nlohmann::json result;  // the engine's answer on success (rank 0's), else null
  std::string error;      // one line, "" when all went as asked
  bool is_rank_zero = true;
  bool saved = false;  // a checkpoint of this run is there
};

// Where and how the ranks of this job run here.
struct Placement : planner::Ranks {
  std::optional<elastic::RankEnvironment> launched;  // by mpirun, srun, torchrun: this process is one rank
  std::optional<elastic::NodeList> nodes;            // this process is the agent of one of them
  std::string interface;                             // network interface that was chosen; "": by route
};

// A new id, or that of the run that was submitted, which keeps it when it is started again.
std::string run_id_for(const std::string& name);

// What nodes of one run must agree on. Two machines of the same kind differ by some pages of memory.
std::string job_digest(spec::Job job);

// Throws UserError when the launcher's world and the job's differ, or the job needs GPUs that are not here. An agent is
// not one of the launcher's ranks.
Placement place(const spec::Job& job, const std::string& backend, bool is_agent = false,
                const std::optional<elastic::NodeList>& nodes = {});

// Where runs go. Without a record nothing need be kept: where the home cannot be written, logs and checkpoints go to a
// temporary place.
std::filesystem::path run_home(bool record);

// What other libraries in the ranks are told about the interface; nothing for "".
std::map<std::string, std::string> interface_environment(const std::string& name);

inline constexpr const char* kRequeueReason = "stopped to be started again";

// One interface for agents, store and communicators. Throws UserError when there is no such interface, or the nodes
// were named by addresses of another one. "": nothing is chosen.
void choose_interface(const std::string& name, Placement& placement);

// Blocks until the run is over. Errors of the run are in the result; only what went wrong before any rank started is
// thrown.
SessionResult run_session(const spec::Job& job, const Placement& placement, const SessionOptions& options);

// Runs one rank described by `request` in this process (opens the engine), sending messages to `on_message`.
// `next_command`: of the agent that commands it (EngineCallbacks); empty where none does.
int run_rank_here(const elastic::RankRequest& request, const std::function<void(const nlohmann::json&)>& on_message,
                  const std::function<std::optional<std::string>(int)>& next_command = {});

}  // namespace lockstep::cli
