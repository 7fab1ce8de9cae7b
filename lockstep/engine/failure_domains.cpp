#include "lockstep/engine/failure_domains.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "lockstep/base/error.h"

namespace lockstep::engine {
namespace {

template <class Key>
std::vector<int> numbered(const std::vector<Key>& keys) {
  std::map<Key, int> numbers;
  std::vector<int> result;
  result.reserve(keys.size());
  for (const Key& key : keys) result.push_back(numbers.emplace(key, static_cast<int>(numbers.size())).first->second);
  return result;
}

bool all_the_same(const std::vector<int>& domains) {
  return std::all_of(domains.begin(), domains.end(), [&](int domain) { return domain == domains.front(); });
}

}  // namespace

std::vector<int> failure_domains(const std::vector<RankPlace>& places) {
  std::vector<std::string> hosts;
  std::vector<int> nodes, ranks;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    hosts.push_back(places[rank].host);
    nodes.push_back(static_cast<int>(rank) - places[rank].local_rank);  // the first rank of its node
    ranks.push_back(static_cast<int>(rank));
  }
  if (auto by_host = numbered(hosts); !all_the_same(by_host)) return by_host;
  if (auto by_node = numbered(nodes); !all_the_same(by_node)) return by_node;
  return ranks;
}

std::vector<int> choose_keepers(const std::vector<int>& domains) {
  const auto size = domains.size();
  std::map<int, std::vector<int>> members;
  for (std::size_t rank = 0; rank < size; ++rank) members[domains[rank]].push_back(static_cast<int>(rank));
  if (members.size() < 2) return std::vector<int>(size, -1);
  // Domain after domain, the largest first: a step of its size leaves every domain.
  std::vector<const std::vector<int>*> groups;
  groups.reserve(members.size());
  for (const auto& [domain, ranks] : members) groups.push_back(&ranks);
  const auto largest = std::max_element(groups.begin(), groups.end(),
                                        [](const auto* a, const auto* b) { return a->size() < b->size(); });
  std::rotate(groups.begin(), largest, groups.end());
  std::vector<int> order;
  for (const auto* group : groups) order.insert(order.end(), group->begin(), group->end());
  const std::size_t most = groups.front()->size(), outside = size - most;
  std::vector<int> keepers(size, -1);
  for (std::size_t i = 0; i < size; ++i) {
    const bool crowded = i < most && most > outside;
    keepers[static_cast<std::size_t>(order[i])] = order[crowded ? most + i % outside : (i + most) % size];
  }
  return keepers;
}

std::vector<std::vector<bool>> unshared_pieces(const std::vector<std::vector<std::uint64_t>>& of_ranks,
                                               const std::vector<int>& domains) {
  LOCKSTEP_ASSERT(of_ranks.size() == domains.size(), "a domain for every rank");
  std::map<std::uint64_t, std::set<int>> holders;
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    for (const std::uint64_t piece : of_ranks[rank]) holders[piece].insert(static_cast<int>(rank));
  }
  std::vector<std::vector<bool>> sent(of_ranks.size());
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    for (const std::uint64_t piece : of_ranks[rank]) {
      const std::set<int>& have = holders.at(piece);
      const bool here_alone = std::all_of(have.begin(), have.end(), [&](int other) {
        return domains[static_cast<std::size_t>(other)] == domains[rank];
      });
      sent[rank].push_back(here_alone && *have.begin() == static_cast<int>(rank));
    }
  }
  return sent;
}

}  // namespace lockstep::engine
