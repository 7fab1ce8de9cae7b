#include "lockstep/engine/failure_domains.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace lockstep::engine {
namespace {

std::vector<int> nodes_of(const std::vector<int>& sizes) {
  std::vector<int> domains;
  for (std::size_t node = 0; node < sizes.size(); ++node)
    domains.insert(domains.end(), sizes[node], static_cast<int>(node));
  return domains;
}

TEST(ChooseKeepers, on_one_node_the_next_rank_keeps_the_copy) {
  EXPECT_EQ(choose_keepers({0, 1, 2, 3}), (std::vector<int>{1, 2, 3, 0}));
}

TEST(ChooseKeepers, on_two_nodes_the_same_place_in_the_other) {
  EXPECT_EQ(choose_keepers({0, 0, 1, 1}), (std::vector<int>{2, 3, 0, 1}));
}

TEST(ChooseKeepers, follows_the_nodes_and_not_the_numbers_of_ranks) {
  EXPECT_EQ(choose_keepers({0, 1, 0, 1}), (std::vector<int>{1, 0, 3, 2}));
}

TEST(ChooseKeepers, one_rank_has_nobody) { EXPECT_EQ(choose_keepers({0}), (std::vector<int>{-1})); }

TEST(ChooseKeepers, no_domain_holds_both_copies_whatever_the_sizes) {
  for (const auto& sizes :
       std::vector<std::vector<int>>{{2, 2}, {3, 1}, {1, 3}, {8, 8, 8}, {4, 1, 2}, {5, 3}, {1, 1, 6}, {2, 3, 2, 4}}) {
    const std::vector<int> domains = nodes_of(sizes);
    const std::vector<int> keepers = choose_keepers(domains);
    std::vector<int> kept(domains.size());
    for (std::size_t rank = 0; rank < domains.size(); ++rank) {
      ASSERT_GE(keepers[rank], 0);
      EXPECT_NE(domains[rank], domains[static_cast<std::size_t>(keepers[rank])]) << rank;
      ++kept[static_cast<std::size_t>(keepers[rank])];
    }
    // As even as the sizes let it be.
    const int largest = *std::max_element(sizes.begin(), sizes.end());
    const int outside = static_cast<int>(domains.size()) - largest;
    EXPECT_LE(*std::max_element(kept.begin(), kept.end()), (largest + outside - 1) / outside) << sizes.size();
  }
}

TEST(FailureDomains, are_hosts_where_there_are_several) {
  EXPECT_EQ(failure_domains({{"a", 0}, {"b", 0}, {"a", 1}, {"b", 1}}), (std::vector<int>{0, 1, 0, 1}));
}

TEST(FailureDomains, are_nodes_where_several_share_a_host) {
  EXPECT_EQ(failure_domains({{"a", 0}, {"a", 1}, {"a", 0}, {"a", 1}}), (std::vector<int>{0, 0, 1, 1}));
}

TEST(FailureDomains, are_ranks_on_one_node) {
  EXPECT_EQ(failure_domains({{"a", 0}, {"a", 1}, {"a", 2}}), (std::vector<int>{0, 1, 2}));
}

TEST(UnsharedPieces, what_another_domain_holds_is_not_sent) {
  // Ranks 0 and 1 on one node, 2 and 3 on another. 10 is on both nodes, 20 on the first alone, 30 on rank 3 alone.
  const auto sent = unshared_pieces({{10, 20}, {20}, {10}, {30, 10}}, {0, 0, 1, 1});
  EXPECT_EQ(sent[0], (std::vector<bool>{false, true}));
  EXPECT_EQ(sent[1], (std::vector<bool>{false}));  // rank 0 sends it
  EXPECT_EQ(sent[2], (std::vector<bool>{false}));
  EXPECT_EQ(sent[3], (std::vector<bool>{true, false}));
}

}  // namespace
}  // namespace lockstep::engine
