// Which ranks fail together, and who keeps whose copy. Pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace lockstep::engine {

// Where a rank runs.
struct RankPlace {
  std::string host;
  int local_rank = 0;  // among the ranks of its node
};

// The failure domain of each rank, numbered from 0: its node where the ranks are on several, else the rank itself.
std::vector<int> failure_domains(const std::vector<RankPlace>& places);

// For each rank the one that keeps a copy of its state: of another domain, the same place in the next node where nodes
// are alike. Where no domain has more than half of the ranks, each rank keeps one copy; otherwise the few outside the
// largest domain keep several. -1 where there is only one domain.
std::vector<int> choose_keepers(const std::vector<int>& domains);

// What each rank has to send to its keeper, by the place in its list: pieces (numbers that name their contents) that no
// rank of another domain holds. Of several ranks in a domain that hold the same, the first sends it.
std::vector<std::vector<bool>> unshared_pieces(const std::vector<std::vector<std::uint64_t>>& of_ranks,
                                               const std::vector<int>& domains);

}  // namespace lockstep::engine
