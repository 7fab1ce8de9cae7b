// Agent: one per node. It starts the ranks of its node, listens to them, replaces those that fail, ends them together
// and names one root cause.
//
// With several nodes one agent leads: it decides for all (recovery.h) and serves the rendezvous store of the ranks. The
// others carry its orders out and tell it what their ranks say. The leader is the first node of the list that lives:
// when it is lost, the next one takes over with what the others tell it, and the run goes on. An agent leads only while
// more than half of the nodes that were there last are with it (half, if it led them before), so that of two sides of a
// broken network one goes on; the other ends its ranks and tries to come back. Where the nodes met at an endpoint
// (roster.h), the agent of node 0 listens there, and nodes that come later are given a number by the leader.
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
#include "lockstep/elastic/finding.h"
#include "lockstep/elastic/node_list.h"
#include "lockstep/elastic/recovery.h"
#include "lockstep/elastic/root_cause.h"
#include "lockstep/elastic/workers.h"

namespace lockstep::elastic {

struct AgentOptions {
  std::vector<std::string> argv;  // of every process; argv[0] is the executable
  Processes processes = Processes::kFixed;
  RecoveryLimits recovery;
  std::vector<ChaosEvent> chaos;                   // faults on purpose; of commanded processes
  std::map<std::string, std::string> environment;  // added for every process
  std::vector<std::string> unset;                  // removed from what every process inherits
  std::filesystem::path log_folder;
  double grace_seconds = 4.0;     // after a rank failed: for the others to notice by themselves
  double stop_seconds = 300.0;    // after a stop was asked for: to finish the step and save
  double own_end_seconds = 10.0;  // after an error of its own on a GPU: for a process to end by itself
  std::string address;            // to listen on; "": loopback, with nodes beyond it every interface
  // Several nodes; not with kFixed. Nothing: this machine alone.
  std::optional<NodeList> nodes;
  std::string token;             // that agents and ranks of all nodes share; not looked at without nodes
  std::string job;               // a digest: agents of another job are refused
  std::string joining;           // what nodes say of the job when they meet (roster.h); "": the same
  nlohmann::json facts;          // that the first leader's processes share with those of other nodes
  double rejoin_seconds = 60.0;  // how long a node that lost the others tries to come back
};

struct AgentResult {
  int exit_code = 0;  // 0, 130 (stopped as asked), 75 (stopped to be started again), or the root cause's
  std::optional<RootCause> cause;
  bool leads = true;         // this agent speaks for the run
  bool began = true;         // there were ranks
  bool handed_over = false;  // it did, and left because its node is unhealthy: another one goes on
  int restarts = 0;
  std::int64_t lost_steps = 0;               // that were done and had to be done again
  std::vector<double> recovery_seconds;      // from each failure to the first step after it
  std::vector<ChaosEvent> chaos_left;        // that did not come to pass
  std::vector<std::string> without_records;  // nodes whose records were asked for and did not come whole
};

struct Prepared {
  std::vector<std::string> argv;
  std::filesystem::path log_folder;
  std::map<std::string, std::string> environment;  // added
};

struct AgentCallbacks {
  // On the leader: what ranks say, and what the agents have to tell with rank -1: "note" {text}, "finding" {node, and
  // what to_json(Finding) writes; told: it was printed before}. On other nodes: their agent's own.
  std::function<void(int rank, const nlohmann::json& message)> on_message;
  // On the leader: heartbeats of ranks that work (elastic/control.h). May be empty.
  std::function<void(int rank, const nlohmann::json& beat)> on_beat = {};
  std::function<void(int rank, int pid)> on_start;
  // How often the user asked to stop: at 1 the ranks are told (SIGINT), from 2 on they are killed.
  std::function<int()> stop_requests;
  // The signal that asked: foreign processes get the same. Empty: SIGINT.
  std::function<int()> stop_signal;
  // Whether the stop is one to be started again after.
  std::function<bool()> requeue_asked;
  // What was found about the health of this node since the last call; `pids`: its processes. Must not block.
  // A node with a fatal finding leaves the run when the others can go on without it.
  std::function<std::vector<Finding>(const std::vector<int>& pids)> findings;
  // Once, before any process of this node is started: the facts of the run, which the first leader gave. May make and
  // fill the log folder. Returns what takes the place of AgentOptions::argv and log_folder.
  std::function<Prepared(const nlohmann::json& facts)> prepare;
  // What the processes of this node use, every few seconds; the leader hears of it as a message of rank -1:
  // "usage" {node, and what was returned}. Must not block.
  std::function<nlohmann::json(const std::map<int, int>& pids_by_rank)> usage;
  // At the end of a run whose ranks could not bring their records together. On the leader: whether they are wanted, and
  // a piece of those of `node`. On other nodes: the next piece, until there is none.
  std::function<bool()> wants_records;
  std::function<void(int node, const nlohmann::json& piece)> on_records;
  std::function<std::optional<nlohmann::json>()> next_records;
  // A line that a foreign process of this node printed.
  std::function<void(const PrintedLine& line)> on_output;
  // Foreign processes: a new generation of `world` ranks begins. On the leader.
  std::function<void(int generation, int world, int restarts)> on_generation;
  // Foreign processes: this rank failed by itself, before the others of its generation. On the leader.
  std::function<void(const RootCause& cause)> on_failure;
  // This agent speaks for the run from now on.
  std::function<void()> on_lead;
};

// Blocks until every rank has ended; no rank of this node survives the call. Must be called from a thread that lives
// that long (the ranks die with it). Throws UserError when a rank cannot be started, or no other node answers.
AgentResult run_agent(const AgentOptions& options, const AgentCallbacks& callbacks);

}  // namespace lockstep::elastic
