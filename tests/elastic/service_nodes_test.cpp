#include "lockstep/elastic/service_nodes.h"

#include <gtest/gtest.h>

#include <map>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::elastic {
namespace {

using Variables = std::map<std::string, std::string>;
using Nodes = std::vector<NodeAddress>;

VariableLookup lookup(Variables set) {
  return [set = std::move(set)](const std::string& name) -> std::optional<std::string> {
    const auto found = set.find(name);
    return found == set.end() || found->second.empty() ? std::nullopt : std::optional(found->second);
  };
}

std::optional<NodeList> find(const Variables& set) { return find_nodes("", -1, lookup(set)); }

// The message of the error; "" when there is none.
std::string refusal(const Variables& set) {
  try {
    find(set);
    endpoint_of_service(lookup(set));
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

const Variables kSkyPilot = {{"SKYPILOT_NODE_IPS", "10.0.0.1\n10.0.0.2\n10.0.0.3\n"},
                             {"SKYPILOT_NODE_RANK", "2"},
                             {"SKYPILOT_TASK_ID", "sky-managed-7"}};
const Variables kSageMaker = {
    {"SM_HOSTS", R"(["algo-1","algo-2"])"}, {"SM_CURRENT_HOST", "algo-2"}, {"SM_NETWORK_INTERFACE_NAME", "eth0"}};
const char* const kVertex =
    R"({"cluster":{"workerpool0":["cmle-training-workerpool0-ab-0:2222"],)"
    R"("workerpool1":["cmle-training-workerpool1-ab-0:2222","cmle-training-workerpool1-ab-1:2222"]},)"
    R"("environment":"cloud","task":{"type":"workerpool1","index":1},"job":"{}"})";
const Variables kAzure = {{"AZUREML_RUN_ID", "blue_fox"},
                          {"AZUREML_NODE_COUNT", "4"},
                          {"AZ_BATCH_MASTER_NODE", "10.0.0.4:6000"},
                          {"NODE_RANK", "3"}};

Variables with(Variables set, const std::string& name, const std::string& value) {
  set[name] = value;
  return set;
}

TEST(ServiceNodes, of_skypilot_are_its_addresses_and_rank) {
  const auto nodes = find(kSkyPilot);
  ASSERT_TRUE(nodes);
  EXPECT_EQ(nodes->source, "skypilot");
  EXPECT_EQ(nodes->self, 2);
  EXPECT_EQ(nodes->nodes.front().host, "10.0.0.1");
  EXPECT_EQ(nodes->nodes.front().port, nodes->nodes.back().port);
  EXPECT_NE(nodes->nodes.front().port, find(with(kSkyPilot, "SKYPILOT_TASK_ID", "other"))->nodes.front().port);
  EXPECT_FALSE(find({{"SKYPILOT_NODE_IPS", "10.0.0.1"}, {"SKYPILOT_NODE_RANK", "0"}}));
}

TEST(ServiceNodes, of_sagemaker_are_its_hosts_and_interface) {
  const auto nodes = find(kSageMaker);
  ASSERT_TRUE(nodes);
  EXPECT_EQ(nodes->nodes, (Nodes{{"algo-1", kUsualPort}, {"algo-2", kUsualPort}}));
  EXPECT_EQ(nodes->self, 1);
  EXPECT_EQ(nodes->interface, "eth0");
}

TEST(ServiceNodes, of_sagemaker_come_from_its_file_without_the_toolkit) {
  const TemporaryFolder folder;
  const auto file = folder.path() / "resourceconfig.json";
  write_file_atomically(file, R"({"current_host":"algo-1","hosts":["algo-1","algo-2"],"network_interface_name":"eth1",)"
                              R"("current_instance_type":"ml.p4d.24xlarge"})");
  const auto nodes = nodes_of_service(lookup({}), file);
  ASSERT_TRUE(nodes);
  EXPECT_EQ(nodes->self, 0);
  EXPECT_EQ(nodes->interface, "eth1");
  EXPECT_FALSE(nodes_of_service(lookup({}), folder.path() / "absent.json"));
  write_file_atomically(file, R"({"hosts":["algo-1","algo-2"]})");
  EXPECT_THROW(nodes_of_service(lookup({}), file), UserError);
}

TEST(ServiceNodes, of_vertex_are_its_pools_in_their_order) {
  const auto nodes = find({{"CLUSTER_SPEC", kVertex}});
  ASSERT_TRUE(nodes);
  EXPECT_EQ(nodes->source, "vertex");
  EXPECT_EQ(nodes->self, 2);
  EXPECT_EQ(nodes->nodes.front(), (NodeAddress{"cmle-training-workerpool0-ab-0", 2222}));
  EXPECT_FALSE(
      find({{"CLUSTER_SPEC", R"({"cluster":{"workerpool0":["a:1"]},"task":{"type":"workerpool0","index":0}})"}}));
}

TEST(ServiceNodes, of_tf_config_are_its_chief_and_workers) {
  const auto nodes = find({{"TF_CONFIG", R"({"cluster":{"worker":["b:1","c:1"],"chief":["a:1"],"ps":["p:1"]},)"
                                         R"("task":{"type":"worker","index":0}})"}});
  ASSERT_TRUE(nodes);
  EXPECT_EQ(nodes->nodes, (Nodes{{"a", 1}, {"b", 1}, {"c", 1}}));
  EXPECT_EQ(nodes->self, 1);
}

TEST(ServiceNodes, of_azure_are_known_by_the_first_one) {
  const auto endpoint = endpoint_of_service(lookup(kAzure));
  ASSERT_TRUE(endpoint);
  EXPECT_EQ(endpoint->address, (NodeAddress{"10.0.0.4", derived_port("blue_fox")}));
  EXPECT_EQ(endpoint->nodes, 4);
  EXPECT_EQ(endpoint->node, 3);
  EXPECT_FALSE(endpoint_of_service(lookup(with(kAzure, "AZUREML_NODE_COUNT", "1"))));
  EXPECT_FALSE(endpoint_of_service(lookup({{"MASTER_ADDR", "10.0.0.4"}, {"NODE_RANK", "1"}})));
  const Variables mpi = {{"AZUREML_RUN_ID", "r"},
                         {"AZUREML_NODE_COUNT", "2"},
                         {"AZ_BATCHAI_MPI_MASTER_NODE", "10.0.0.9"},
                         {"OMPI_COMM_WORLD_RANK", "1"}};
  EXPECT_EQ(endpoint_of_service(lookup(mpi))->address.host, "10.0.0.9");
  EXPECT_EQ(endpoint_of_service(lookup(mpi))->node, 1);
}

TEST(ServiceNodes, half_of_what_is_needed_is_refused_with_its_name) {
  const auto has = [](const std::string& text, const char* piece) { return text.find(piece) != std::string::npos; };
  EXPECT_TRUE(has(refusal(with(kSkyPilot, "SKYPILOT_NODE_RANK", "")), "SKYPILOT_NODE_RANK"));
  EXPECT_TRUE(has(refusal(with(kSkyPilot, "SKYPILOT_NODE_RANK", "x")), "whole number"));
  EXPECT_TRUE(has(refusal(with(kSkyPilot, "SKYPILOT_NODE_RANK", "3")), "node 3 of 3"));
  EXPECT_TRUE(has(refusal(with(kSageMaker, "SM_CURRENT_HOST", "")), "SM_CURRENT_HOST"));
  EXPECT_TRUE(has(refusal(with(kSageMaker, "SM_CURRENT_HOST", "algo-9")), "algo-9"));
  EXPECT_TRUE(has(refusal(with(kSageMaker, "SM_HOSTS", "algo-1,algo-2")), "SM_HOSTS"));
  EXPECT_TRUE(has(refusal({{"CLUSTER_SPEC", "{}"}}), "CLUSTER_SPEC"));
  EXPECT_TRUE(
      has(refusal({{"CLUSTER_SPEC", R"({"cluster":{"workerpool0":["a:1"]},"task":{"type":"workerpool0","index":4}})"}}),
          "task 4"));
  EXPECT_TRUE(
      has(refusal({{"TF_CONFIG", R"({"cluster":{"worker":["b:1"]},"task":{"type":"ps","index":0}})"}}), "\"ps\""));
  EXPECT_TRUE(has(refusal(with(kAzure, "AZ_BATCH_MASTER_NODE", "")), "distribution"));
  EXPECT_TRUE(has(refusal(with(kAzure, "NODE_RANK", "")), "OMPI_COMM_WORLD_RANK"));
  EXPECT_TRUE(has(refusal(with(kAzure, "NODE_RANK", "4")), "node 4 of 4"));
}

TEST(ServiceNodes, flags_and_our_own_variables_come_first) {
  EXPECT_EQ(find_nodes("a,b", 0, lookup(kSageMaker))->source, "flags");
  EXPECT_EQ(find(with(with(kSageMaker, "LOCKSTEP_NODES", "a,b"), "LOCKSTEP_NODE", "1"))->source, "lockstep");
}

}  // namespace
}  // namespace lockstep::elastic
