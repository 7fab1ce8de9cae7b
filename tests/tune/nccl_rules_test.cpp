#include "lockstep/tune/job/nccl_rules.h"

#include <gtest/gtest.h>

#include <set>

namespace lockstep::tune {
namespace {

NcclFacts facts(int version, int nodes, std::optional<bool> hopper = {}, std::optional<bool> ll128_safe = {}) {
  return {version, nodes, hopper, ll128_safe};
}

bool works(const std::string& algo, const std::string& proto, const NcclFacts& known = {}) {
  return nccl_objection(algo, proto, known).empty();
}

// "Ring/LL Ring/LL128 ...": every pair that works.
std::set<std::string> pairs(const NcclFacts& known) {
  std::set<std::string> result;
  for (const char* algo : {"Ring", "Tree", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"}) {
    for (const char* proto : {"LL", "LL128", "Simple"}) {
      if (works(algo, proto, known)) result.insert(std::string(algo) + "/" + proto);
    }
  }
  return result;
}

using Pairs = std::set<std::string>;
const Pairs kRingAndTree = {"Ring/LL", "Ring/LL128", "Ring/Simple", "Tree/LL", "Tree/LL128", "Tree/Simple"};

Pairs with(Pairs base, const Pairs& more) {
  base.insert(more.begin(), more.end());
  return base;
}

struct Case {
  const char* what;
  NcclFacts known;
  Pairs wanted;
};

TEST(NcclRules, table_by_version_and_machines) {
  const Pairs collnet = {"CollNetDirect/Simple", "CollNetChain/Simple"};
  const Pairs rest = with(collnet, {"NVLS/Simple", "NVLSTree/Simple", "PAT/Simple"});
  const std::vector<Case> table = {
      {"nothing known", facts(0, 0), with(kRingAndTree, rest)},
      {"2.30.7, two Hopper nodes", facts(23007, 2, true, true), with(kRingAndTree, rest)},
      {"2.30.7, one Hopper node", facts(23007, 1, true, true),
       with(kRingAndTree, with(collnet, {"NVLS/Simple", "PAT/Simple"}))},
      {"2.30.7, two A100 nodes", facts(23007, 2, false, true), with(kRingAndTree, with(collnet, {"PAT/Simple"}))},
      {"2.22.3, two Hopper nodes", facts(22203, 2, true, true),
       with(kRingAndTree, with(collnet, {"NVLS/Simple", "NVLSTree/Simple"}))},
      {"2.23.4 has PAT", facts(22304, 2, true, true), with(kRingAndTree, rest)},
      {"2.18.1, one A100 node", facts(21801, 1, false, true), with(kRingAndTree, collnet)},
      {"LL128 unsafe", facts(23007, 2, false, false),
       with({"Ring/LL", "Ring/Simple", "Tree/LL", "Tree/Simple"}, with(collnet, {"PAT/Simple"}))},
      {"LL128 unknown is allowed with Ring and Tree", facts(23007, 2, false),
       with(kRingAndTree, with(collnet, {"PAT/Simple"}))},
      {"only the nodes known", facts(0, 1), with(kRingAndTree, with(collnet, {"NVLS/Simple", "PAT/Simple"}))},
  };
  for (const Case& entry : table) EXPECT_EQ(pairs(entry.known), entry.wanted) << entry.what;
}

TEST(NcclRules, letter_case_underscores_and_spaces_do_not_matter) {
  EXPECT_FALSE(works("nvls", "ll"));
  EXPECT_FALSE(works("NVLS_TREE", "Simple", facts(0, 1)));
  EXPECT_FALSE(works(" Nvls ", "LL128"));
  EXPECT_TRUE(works("RING", "ll128"));
  EXPECT_FALSE(works("COLLNET_DIRECT", "LL"));
}

TEST(NcclRules, unset_goes_with_everything) {
  for (const char* unset : {"", "auto", "default", "Auto"}) {
    EXPECT_TRUE(works(unset, "LL128")) << unset;
    EXPECT_TRUE(works("NVLS", unset)) << unset;
    EXPECT_TRUE(works("PAT", unset)) << unset;
    EXPECT_FALSE(works("NVLSTree", unset, facts(23007, 1))) << unset;
    EXPECT_FALSE(works(unset, "LL128", facts(23007, 1, true, false))) << unset;
    EXPECT_TRUE(works(unset, unset, facts(23007, 1, false, false))) << unset;
  }
}

TEST(NcclRules, a_list_needs_one_pair_that_works) {
  EXPECT_TRUE(works("NVLS,Ring", "LL"));
  EXPECT_FALSE(works("NVLS,PAT", "LL"));
  EXPECT_TRUE(works("NVLS", "LL,Simple"));
  EXPECT_TRUE(works("NVLSTree,Tree", "Simple", facts(23007, 1, true)));
  EXPECT_FALSE(works("NVLSTree,NVLS", "Simple", facts(23007, 1, false)));
}

TEST(NcclRules, a_caret_means_all_but) {
  EXPECT_TRUE(works("^NVLS", "LL"));
  EXPECT_FALSE(works("^Ring,Tree", "LL"));
  EXPECT_TRUE(works("^Ring,Tree", "^LL"));
  EXPECT_TRUE(works("NVLS", "^LL128"));
  EXPECT_FALSE(works("NVLS", "^Simple"));
}

TEST(NcclRules, lists_force_ll128_too) {
  const NcclFacts unsafe = facts(23007, 2, true, false);
  EXPECT_FALSE(works("Ring", "LL,LL128,Simple", unsafe));
  EXPECT_FALSE(works("Ring", "^LL", unsafe)) << "switches LL128 on";
  EXPECT_TRUE(works("Ring", "^LL128", unsafe));
  EXPECT_TRUE(works("Ring", "LL,Simple", unsafe));
}

TEST(NcclRules, a_collective_may_have_its_own_list) {
  EXPECT_TRUE(works("allreduce:tree", "LL"));
  EXPECT_TRUE(works("allreduce:nvls", "Simple"));
  EXPECT_FALSE(works("allreduce:nvls", "LL"));
  EXPECT_TRUE(works("ring;allreduce:tree", "LL128"));
  EXPECT_FALSE(works("allgather:tree", ""));
  EXPECT_FALSE(works("allreduce:pat", ""));
  EXPECT_TRUE(works("allgather:pat;reducescatter:pat", ""));
  EXPECT_TRUE(works("allreduce:nvls", "ll;allreduce:simple"));
}

TEST(NcclRules, lists_by_collective_came_with_2_24) {
  EXPECT_FALSE(works("ring;allreduce:tree", "", facts(22304, 2)));
  EXPECT_TRUE(works("ring;allreduce:tree", "", facts(22403, 2)));
  EXPECT_TRUE(works("ring;allreduce:tree", "", facts(0, 2)));
}

TEST(NcclRules, names_newer_than_the_table_go_with_everything) {
  EXPECT_TRUE(works("Hyper", "LL"));
  EXPECT_TRUE(works("NVLS", "LL256"));
}

TEST(NcclRules, objections_say_why) {
  EXPECT_NE(nccl_objection("NVLS", "LL", {}).find("Simple protocol only"), std::string::npos);
  EXPECT_NE(nccl_objection("NVLSTree", "", facts(0, 1)).find("more than one node"), std::string::npos);
  EXPECT_NE(nccl_objection("PAT", "", facts(22203, 2)).find("2.23"), std::string::npos);
  EXPECT_NE(nccl_objection("", "LL128", facts(0, 0, {}, false)).find("corrupt"), std::string::npos);
  EXPECT_NE(nccl_objection("NVLS", "LL", facts(21801, 2)).find("quietly"), std::string::npos);
  EXPECT_EQ(nccl_objection("NVLS", "LL", facts(22400, 2)).find("quietly"), std::string::npos);
}

TEST(NcclRules, become_one_constraint_per_algorithm) {
  const std::vector<Value> algos = {std::string("Ring"), std::string("NVLS"), std::string("NVLSTree")};
  const std::vector<Value> protos = {std::string("LL"), std::string("LL128"), std::string("Simple")};
  EXPECT_EQ(
      nccl_constraints(algos, protos, facts(23007, 1, true)),
      (std::vector<std::string>{"NCCL_ALGO != \"NVLS\" or NCCL_PROTO in [\"Simple\"]", "NCCL_ALGO != \"NVLSTree\""}));
  EXPECT_EQ(nccl_constraints({}, protos, facts(0, 0, {}, false)),
            (std::vector<std::string>{"NCCL_PROTO != \"LL128\""}));
  EXPECT_TRUE(nccl_constraints(algos, {}, {}).empty()) << "NCCL_ALGO alone is fine";
  EXPECT_TRUE(nccl_constraints({}, {}, {}).empty());
}

TEST(NcclRules, nthreads_counts_for_ring_and_tree_only) {
  EXPECT_TRUE(nccl_uses_nthreads("Ring", "Simple"));
  EXPECT_TRUE(nccl_uses_nthreads("Tree", "LL"));
  EXPECT_FALSE(nccl_uses_nthreads("Ring", "LL128"));
  EXPECT_FALSE(nccl_uses_nthreads("NVLS", "Simple"));
  EXPECT_FALSE(nccl_uses_nthreads("CollNetDirect", "Simple"));
  EXPECT_TRUE(nccl_uses_nthreads("auto", ""));
}

TEST(NcclRules, versions_are_read_as_people_write_them) {
  EXPECT_EQ(parse_nccl_version("2.30.7"), 23007);
  EXPECT_EQ(parse_nccl_version("2.24"), 22400);
  EXPECT_EQ(parse_nccl_version("23007"), 23007);
  EXPECT_EQ(parse_nccl_version("2.7.8"), 2708);
  for (const char* wrong : {"", "new", "2.", "2.x", "2.1.2.3", "-2.30", "2.30.7+cuda12"}) {
    EXPECT_EQ(parse_nccl_version(wrong), 0) << wrong;
  }
}

}  // namespace
}  // namespace lockstep::tune
