#include "lockstep/elastic/node_list.h"

#include <gtest/gtest.h>

#include <map>

#include "lockstep/base/error.h"

namespace lockstep::elastic {
namespace {

using Hosts = std::vector<std::string>;

VariableLookup variables(std::map<std::string, std::string> set) {
  return [set = std::move(set)](const std::string& name) -> std::optional<std::string> {
    const auto found = set.find(name);
    return found == set.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(NodeList, slurms_lists_are_expanded) {
  EXPECT_EQ(hosts_of("solo"), Hosts{"solo"});
  EXPECT_EQ(hosts_of("alpha,beta"), (Hosts{"alpha", "beta"}));
  EXPECT_EQ(hosts_of("node[03-05,9],other"), (Hosts{"node03", "node04", "node05", "node9", "other"}));
  EXPECT_EQ(hosts_of("a,b[1-2]-ib"), (Hosts{"a", "b1-ib", "b2-ib"}));
  EXPECT_EQ(hosts_of("n[12]"), Hosts{"n12"});
}

TEST(NodeList, what_is_not_a_list_is_refused) {
  for (const char* text : {"n[1-", "n1,,n2", "n[3-1]", "n[a-b]", "n]1[", "n[1-999999999]"}) {
    EXPECT_THROW(hosts_of(text), UserError) << text;
  }
  EXPECT_THROW(parse_nodes("n1:http", 1), UserError);
  EXPECT_THROW(find_nodes("n1,n1", 0, variables({})), UserError);
  EXPECT_THROW(find_nodes("n1,n2", 2, variables({})), UserError);
  EXPECT_THROW(find_nodes("", 1, variables({})), UserError);
}

TEST(NodeList, ports_may_differ) {
  EXPECT_EQ(parse_nodes("127.0.0.1:7001,n2", 29), (std::vector<NodeAddress>{{"127.0.0.1", 7001}, {"n2", 29}}));
  EXPECT_TRUE(find_nodes("127.0.0.1:7001,127.0.0.1:7002", 1, variables({}))->on_loopback());
}

TEST(NodeList, comes_from_a_slurm_step_with_one_task_per_node) {
  std::map<std::string, std::string> step = {{"SLURM_STEP_NUM_TASKS", "3"},
                                             {"SLURM_STEP_NUM_NODES", "3"},
                                             {"SLURM_STEP_NODELIST", "n[1-3]"},
                                             {"SLURM_NODEID", "2"},
                                             {"SLURM_JOB_ID", "7"}};
  const auto nodes = find_nodes("", -1, variables(step));
  ASSERT_TRUE(nodes);
  EXPECT_EQ(nodes->self, 2);
  EXPECT_EQ(nodes->nodes.back().host, "n3");
  EXPECT_EQ(nodes->nodes.front().port, nodes->nodes.back().port);
  step["SLURM_STEP_NUM_TASKS"] = "6";
  EXPECT_THROW(find_nodes("", -1, variables(step)), UserError);
  EXPECT_FALSE(find_nodes("", -1, variables({})));
}

}  // namespace
}  // namespace lockstep::elastic
