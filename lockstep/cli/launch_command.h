// The part of `lockstep launch` that is about anybody's program: its flags, and where its own words begin.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "lockstep/cli/launch_flags.h"
#include "lockstep/cli/launch_on.h"
#include "lockstep/cli/train.h"
#include "lockstep/cli/verbs.h"

namespace lockstep::cli {

void add_launch_flags(CLI::App& verb, const std::shared_ptr<LaunchFlags>& flags);

// Moves the program of `launch` and its arguments from the command line to `outcome`, so that they are not read as
// flags of ours: what follows `--`, or begins with the first word that is neither a flag nor a job (.yaml, .yml).
// Returns the number of words that are left.
int take_command(const CLI::App& app, int argc, char** argv, Outcome& outcome);

// The nodes of this run by what the flags, LOCKSTEP_*, PET_* or the scheduler say: a list, or a meeting at an endpoint.
// `job`: must be the same on all. nullopt: this machine alone.
std::optional<elastic::NodeList> find_launch_nodes(const NodesAsked& asked, const TrainOptions& options,
                                                   const std::string& job);

// Runs the program that `outcome` has, with the flags of both. Returns the exit code.
int launch_command(const TrainOptions& options, LaunchFlags flags, const Outcome& outcome);

// The same program, to be started by the agents that a scheduler brings to its nodes.
ForeignProgram program_elsewhere(const TrainOptions& options, const LaunchFlags& flags, const Outcome& outcome,
                                 const schedulers::LaunchSettings& settings);

}  // namespace lockstep::cli
