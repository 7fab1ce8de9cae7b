#include "lockstep/elastic/roster.h"

#include <gtest/gtest.h>

#include <future>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/elastic/sockets.h"

namespace lockstep::elastic {
namespace {

Endpoint at(int port, int fewest, int most, int node = -1) {
  Endpoint endpoint;
  endpoint.address = {"127.0.0.1", port};
  endpoint.fewest = fewest;
  endpoint.most = most;
  endpoint.node = node;
  endpoint.join_seconds = 60.0;
  endpoint.last_call_seconds = 0.3;
  return endpoint;
}

std::future<NodeList> node(const Endpoint& endpoint, const std::string& token = "secret",
                           const std::string& job = "job") {
  return std::async(std::launch::async,
                    [=] { return meet(endpoint, {.token = token, .job = job, .note = {}, .stopped = {}}); });
}

std::string error_of(std::future<NodeList>& result) {
  try {
    result.get();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

TEST(Roster, nodes_that_know_one_endpoint_get_the_same_list) {
  const int port = find_free_port();
  std::vector<std::future<NodeList>> nodes;
  for (int i = 0; i < 3; ++i) nodes.push_back(node(at(port, 3, 3)));
  std::vector<NodeList> lists;
  for (auto& one : nodes) lists.push_back(one.get());
  std::set<int> selves;
  for (const NodeList& list : lists) {
    EXPECT_EQ(list.nodes, lists.front().nodes);
    EXPECT_EQ(list.source, "endpoint");
    selves.insert(list.self);
  }
  EXPECT_EQ(selves, (std::set<int>{0, 1, 2}));
  EXPECT_EQ(lists.front().nodes.front(), (NodeAddress{"127.0.0.1", port})) << "whose agent listens there from now on";
}

TEST(Roster, node_ranks_decide_the_order) {
  const int port = find_free_port();
  auto second = node(at(port, 3, 3, 2)), first = node(at(port, 3, 3, 1)), host = node(at(port, 3, 3, 0));
  EXPECT_EQ(host.get().self, 0);
  EXPECT_EQ(first.get().self, 1);
  EXPECT_EQ(second.get().self, 2);
}

TEST(Roster, two_nodes_of_one_rank_are_told_apart_from_a_mistake) {
  const int port = find_free_port();
  auto host = node(at(port, 3, 3, 0)), first = node(at(port, 3, 3, 1)), twin = node(at(port, 3, 3, 1));
  while (first.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready &&
         twin.wait_for(std::chrono::milliseconds(10)) != std::future_status::ready) {
  }
  auto last = node(at(port, 3, 3, 2));
  const std::string said = error_of(first) + error_of(twin);
  EXPECT_NE(said.find("node rank 1 is there already"), std::string::npos) << said;
  EXPECT_EQ(host.get().nodes.size(), 3u);
  last.get();
}

TEST(Roster, enough_nodes_go_on_after_the_last_call) {
  const int port = find_free_port();
  auto host = node(at(port, 2, 5)), guest = node(at(port, 2, 5));
  EXPECT_EQ(host.get().nodes.size(), 2u);
  guest.get();
}

TEST(Roster, a_node_with_another_secret_is_refused_and_told_what_to_do) {
  const int port = find_free_port();
  Endpoint asks = at(port, 2, 2);
  auto host = node(at(port, 2, 2, 0));
  asks.is_host = false;
  auto stranger = node(asks, "another");
  const std::string said = error_of(stranger);
  EXPECT_NE(said.find("another secret"), std::string::npos) << said;
  EXPECT_NE(said.find("LOCKSTEP_TOKEN"), std::string::npos) << said;
  auto wrong_job = node(asks, "secret", "other");
  EXPECT_NE(error_of(wrong_job).find("another job or command"), std::string::npos);
  node(asks).get();
  EXPECT_EQ(host.get().nodes.size(), 2u);
}

TEST(Roster, too_few_nodes_are_an_error_that_says_how_many_came) {
  Endpoint endpoint = at(find_free_port(), 3, 3, 0);
  endpoint.join_seconds = 0.2;
  auto host = node(endpoint);
  EXPECT_NE(error_of(host).find("1 of 3 nodes came"), std::string::npos);
  endpoint.node = 1;
  auto guest = node(endpoint);
  EXPECT_NE(error_of(guest).find("nobody let this node in"), std::string::npos);
}

TEST(Roster, a_stop_ends_the_wait) {
  const Endpoint endpoint = at(find_free_port(), 2, 2);
  EXPECT_THROW(meet(endpoint, {.token = "secret", .job = "job", .note = {}, .stopped = [] { return true; }}), Fault);
}

}  // namespace
}  // namespace lockstep::elastic
