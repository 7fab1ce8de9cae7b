// Why a run failed: one rank's end explains those of the others.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace lockstep::elastic {

struct RootCause {
  int rank = -1;
  int exit_code = 1;
  std::string message;  // one line that names the rank
  std::string details;  // its last words, several lines; "": none are known
};

// How one rank ended, as its agent saw it.
struct RankEnd {
  int rank = 0;
  bool ended_by_agent = false;  // we killed it because of another rank's failure
  int exit_code = 0;
  int signal = 0;
  std::optional<nlohmann::json> error;  // the first "error" message it sent
};

// The failure that explains the others: a rank that died of a signal or reported an error of its own comes before ranks
// that merely lost a peer. nullopt when every rank ended with 0 or 130. `host_of` names the host of a rank where ranks
// are on several; "" where it is not known.
using HostOfRank = std::function<std::string(int rank)>;
std::optional<RootCause> find_root_cause(const std::vector<RankEnd>& ends, const HostOfRank& host_of = {});

// "rank 3", "rank 3 (n2)".
std::string rank_name(int rank, const HostOfRank& host_of);

}  // namespace lockstep::elastic
