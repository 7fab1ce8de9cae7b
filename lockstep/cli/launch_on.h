// `lockstep launch --on WHERE`: submits a job to a scheduler, follows it, and keeps its record here.
#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/cli/train.h"
#include "lockstep/schedulers/scheduler.h"

namespace lockstep::cli {

struct LaunchOnOptions {
  std::string on;        // "": the job file's launch.on
  std::string hostfile;  // ssh, mpi
  std::string nodes;     // ssh: the machines, instead of a hostfile
  bool detach = false;
  bool cancel_on_interrupt = false;
  std::string attach, cancel;  // runs that were submitted before
};

void add_launch_on_options(CLI::App& verb, LaunchOnOptions& options);

// The scheduler this command line and job file ask for; "" or "local": none. On a node of a submitted or foreign
// launcher's run the file's own wish has been granted already.
std::string scheduler_asked(const LaunchOnOptions& options, const schedulers::LaunchSettings& settings);

// The settings of a job file, with the command line's hosts.
schedulers::LaunchSettings launch_settings(const LaunchOnOptions& options, const YamlNode* section);

// Submits a job, or a foreign program (`command`, `ranks_per_node` on each of `nodes`). Returns the exit code.
int launch_job_on(const TrainOptions& train, const LaunchOnOptions& options);
struct ForeignProgram {
  std::string name;
  std::vector<std::string> flags;  // of `lockstep launch` on the nodes
  std::vector<std::string> command;
  std::int64_t nodes = 1, ranks_per_node = 1;
  std::string device = "cpu";
  bool dry_run = false, json = false, record = true;
};
int launch_program_on(const ForeignProgram& program, const LaunchOnOptions& options,
                      const schedulers::LaunchSettings& settings);

// Runs a verb of lockstep on each of `nodes` (0: all machines that are named) and shows what it prints; nothing is
// recorded.
int run_verb_on(const std::string& verb, const std::vector<std::string>& flags, std::int64_t nodes,
                const LaunchOnOptions& options, schedulers::LaunchSettings settings);

int attach_to(const LaunchOnOptions& options, bool json);
int cancel_submitted(const LaunchOnOptions& options, bool json);

// `lockstep launch --submission -|env` on a node: becomes the agent that the submission asks for.
int start_node(const std::string& source);

}  // namespace lockstep::cli
