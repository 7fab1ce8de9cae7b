// HangReport: one message about ranks that do not get on: who is where, in which collective, who is missing, and where
// the threads of each rank are. Made from what the ranks said last.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace lockstep::elastic {

// What a rank said of an exchange with others that takes long (a heartbeat's `operations`).
struct PendingOperation {
  std::string kind;          // "all_reduce"
  std::string group;         // its name
  std::vector<int> members;  // global ranks
  std::int64_t sequence = 0;
  std::int64_t bytes = 0;
  std::string site;
  int peer = -1;  // of a message; -1: none
  double seconds = 0.0, timeout_seconds = 0.0;

  bool operator==(const PendingOperation& other) const {
    return group == other.group && members == other.members && sequence == other.sequence && kind == other.kind;
  }
};

std::vector<PendingOperation> pending_operations(const nlohmann::json& heartbeat);

// One rank when the run hangs.
struct RankState {
  int rank = 0;
  std::string host;  // "": there is one
  std::int64_t step = -1;
  double silent_seconds = 0.0;  // since its last heartbeat
  std::string phase;            // of a step, "forward"; "": not known
  double phase_seconds = 0.0;
  std::vector<PendingOperation> operations;  // the longest first
  std::string fault;                         // what it failed with; "": it did not
  std::string stacks;                        // states of its threads and their stacks; "": not known
};

struct HangReport {
  std::string text;          // several lines
  std::string line;          // the first one
  std::vector<int> missing;  // ranks that the others wait for
  nlohmann::json data;       // of the event kHang
};

// `why`: how it was noticed, "no step was done in 20 s".
HangReport describe_hang(const std::string& why, const std::vector<RankState>& ranks);

}  // namespace lockstep::elastic
