// Who am I: rank, world and meeting point as the launcher says, whichever launcher it was.
//
// Sources in order: explicit flags (the caller's business), LOCKSTEP_*, torchrun's RANK / WORLD_SIZE / ..., SLURM_*,
// OMPI_*, PMI_*. The first source that names a rank wins; a source that names half of what is needed is an error.
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace lockstep::elastic {

struct RankEnvironment {
  int rank = 0;
  int world = 1;
  int local_rank = 0;
  int local_world = 1;  // ranks on this node
  std::string master_host = "127.0.0.1";
  int master_port = 0;    // 0: the launcher gave none (MPI needs none)
  bool one_node = true;   // every rank is on this machine, so loopback will do
  std::string towards;    // a host that other nodes are reached like; "": master_host
  std::string interface;  // the network interface that other ranks are reached over; "": by route
  std::string source;     // "lockstep", "torchrun", "slurm", "openmpi", "pmi"
};

// Looks a variable up; returns nullopt when unset or empty.
using VariableLookup = std::function<std::optional<std::string>(const std::string&)>;

VariableLookup process_environment();

// nullopt: started by hand, not by a launcher. Throws UserError (exit 2) on half-set or nonsensical variables.
// A launcher that started a single process counts as "by hand": that process may spawn local ranks itself.
std::optional<RankEnvironment> detect_rank_environment(const VariableLookup& lookup = process_environment());

// A port that all processes of one job derive alike, outside the ephemeral range (32768 and up on Linux).
int derived_port(const std::string& job_key);

}  // namespace lockstep::elastic
