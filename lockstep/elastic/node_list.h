// Which nodes a run has and which of them this process is the agent of.
//
// From flags, else LOCKSTEP_NODES / LOCKSTEP_NODE, else a Slurm step of one task per node, else a service that says so
// (service_nodes.h). Nodes beyond what the job's cluster needs are spare.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/elastic/rank_environment.h"

namespace lockstep::elastic {

struct NodeAddress {
  std::string host;
  int port = 0;
  bool operator==(const NodeAddress&) const = default;
};

struct NodeList {
  std::vector<NodeAddress> nodes;  // the same order on every node
  int self = 0;
  std::string source;     // "flags", "lockstep", "slurm", "skypilot", "sagemaker", "vertex", "tf_config"
  std::string interface;  // that the nodes are said to reach each other by; "": not said
  bool on_loopback() const;
};

// Of agents, where nobody says another one.
inline constexpr int kUsualPort = 29400;

// Of digits alone; nothing for all else, and for what does not fit.
std::optional<int> whole_number(const std::string& text);

// "n1,n2:29401,n[3-5]"; those without a port get `port`. Throws UserError.
std::vector<NodeAddress> parse_nodes(const std::string& text, int port);

// "node[03-05,9],other" -> node03, node04, node05, node9, other.
std::vector<std::string> hosts_of(const std::string& slurm_host_list);

// `nodes` and `node` are flags, "" and -1 when not given: then `node` is the one whose name or address is this host's.
// nullopt: nobody says that there are several. Throws UserError on half of what is needed.
std::optional<NodeList> find_nodes(const std::string& nodes, int node,
                                   const VariableLookup& lookup = process_environment());

}  // namespace lockstep::elastic
