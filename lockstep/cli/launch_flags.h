// What `lockstep launch` is told beside a job's own flags: torchrun's flags under torchrun's names, and a few of ours.
// They run anybody's program; those about where nodes meet serve jobs too.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lockstep/elastic/rank_environment.h"
#include "lockstep/elastic/roster.h"

namespace lockstep::cli {

// As written; "" and false: not given.
struct LaunchFlags {
  std::string nproc, nnodes;
  std::string rdzv_backend, rdzv_endpoint, rdzv_id, rdzv_conf;
  std::string node_rank, master_addr, master_port, local_addr;
  std::string max_restarts, shutdown_timeout, role, name, health;
  std::string log_dir, redirects, tee, local_ranks_filter, stdout_filters, stderr_filters;
  std::string monitor_interval, start_method, signals;
  std::string event_log_handler, logs_specs, numa_binding;
  bool standalone = false, module = false, no_python = false, run_path = false, virtual_local_rank = false;
};

struct LaunchFlag {
  const char* names;  // for CLI11: "-r,--redirects"
  std::string LaunchFlags::*text = nullptr;
  bool LaunchFlags::*on = nullptr;  // where it takes no value
  const char* variable;             // torchrun's own default, PET_...; nullptr: none
  const char* help;
  bool of_nodes = false;  // also for jobs
};
std::span<const LaunchFlag> launch_flags();

// What was not given and PET_* has. Throws UserError for a flag of the command line that its variable makes nonsense
// of.
void fill_from_environment(LaunchFlags& flags, const elastic::VariableLookup& lookup = elastic::process_environment());

// A flag that was given and is of no use for a job; nullptr: none.
const LaunchFlag* flag_of_commands(const LaunchFlags& flags);

// How many nodes, and where they meet. `nodes`, `node`: the flags of those names; `nodes` may be a number.
// Throws UserError for what cannot be honoured, with the reason.
struct NodesAsked {
  int fewest = 1, most = 1;
  bool counted = false;                      // somebody said how many
  std::optional<elastic::Endpoint> meeting;  // where they meet; nothing: a list, or this machine alone
};
NodesAsked nodes_asked(const LaunchFlags& flags, const std::string& nodes, int node,
                       const elastic::VariableLookup& lookup = elastic::process_environment());

// "cpu", "gpu", "auto" or a number.
int processes_per_node(const std::string& nproc,
                       const elastic::VariableLookup& lookup = elastic::process_environment());

// What is shown of the streams of the ranks of this node, and copied aside.
class Shown {
 public:
  explicit Shown(const LaunchFlags& flags);
  bool on_terminal(int local_rank, bool is_error) const;
  bool is_copied(bool is_error, const std::string& line) const;

 private:
  std::map<int, int> hidden_;  // by local rank, -1: all; 1: output, 2: errors
  std::set<int> only_;
  std::vector<std::string> filters_[2];
};

// The program that every process runs: `words` are what follows the flags, `separated` after `--`.
std::vector<std::string> program_of(const LaunchFlags& flags, const std::vector<std::string>& words, bool separated,
                                    const elastic::VariableLookup& lookup = elastic::process_environment());

// Refuses what cannot be honoured: --logs-specs and the like.
void require_honoured(const LaunchFlags& flags);

}  // namespace lockstep::cli
