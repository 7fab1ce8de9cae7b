// Roster: how nodes that only know one endpoint find each other. Every node runs the same command; the one that has the
// endpoint's address gathers the others, and then all have the same list of nodes, with which their agents go on. The
// agent of that node listens at the endpoint from then on, so that nodes may come later (elastic/agent.h).
//
// A node says {"type":"join", token, job, rank, address, port} and hears {"type":"nodes", nodes, self}, or {"type":
// "refused", error, fix}, or {"type":"elsewhere", host, port} from an agent that knows who leads.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "lockstep/elastic/node_list.h"

namespace lockstep::elastic {

struct Endpoint {
  NodeAddress address;
  int fewest = 1, most = 1;         // nodes to wait for
  int node = -1;                    // which this one is, -1: as they come; the endpoint's is 0
  std::optional<bool> is_host;      // this node has the endpoint; nothing: by its address
  double join_seconds = 600.0;      // for the others, or the endpoint, to come
  double last_call_seconds = 30.0;  // for more of them once there are enough
  std::string local_address;        // that others reach this node by; "": by route
};

struct RosterOptions {
  std::string token;                                  // that all nodes share
  std::string job;                                    // nodes with another job are refused
  std::function<void(const std::string& text)> note;  // what is waited for; may be empty
  std::function<bool()> stopped;                      // gives up with Fault{kAborted}; may be empty
};

// Blocks until there are enough nodes. Throws UserError: environment when too few came in time or the endpoint does not
// answer, bad input when this node is refused.
NodeList meet(const Endpoint& endpoint, const RosterOptions& options);

nlohmann::json to_json(const std::vector<NodeAddress>& nodes);
std::vector<NodeAddress> nodes_from(const nlohmann::json& list);

// Why a node may not join, as the message it gets; null: it may.
nlohmann::json refusal(const nlohmann::json& join, const std::string& token, const std::string& job,
                       const std::string& self);

}  // namespace lockstep::elastic
