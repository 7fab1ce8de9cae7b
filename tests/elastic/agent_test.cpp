#include "lockstep/elastic/agent.h"

#include <gtest/gtest.h>

#include <csignal>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"

namespace lockstep::elastic {
namespace {

// Ranks are small shell programs here; the texts are constants of the test.
AgentOptions ranks_running(const std::string& script, int world, const TemporaryFolder& folder) {
  AgentOptions options;
  options.argv = {"/bin/bash", "-c", script};  // dash knows no descriptors above 9
  options.recovery.ranks_per_node = world;
  options.log_folder = folder.path();
  options.grace_seconds = 0.5;
  return options;
}

RankEnd ended(int rank, int exit_code, int signal = 0, const std::string& kind = "") {
  RankEnd end{rank, false, exit_code, signal, std::nullopt};
  if (!kind.empty()) end.error = {{"kind", kind}, {"message", kind + " of " + std::to_string(rank)}, {"exit_code", 1}};
  return end;
}

TEST(RootCause, is_absent_when_every_rank_ended_well) { EXPECT_FALSE(find_root_cause({ended(0, 0), ended(1, 130)})); }

TEST(RootCause, is_the_killed_rank_and_not_the_peers_that_lost_it) {
  const auto cause = find_root_cause({ended(0, 1, 0, "peer_lost"), ended(1, 1, 0, "timeout"), ended(2, 0, SIGKILL)});
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rank, 2);
  EXPECT_NE(cause->message.find("SIGKILL"), std::string::npos);
}

TEST(RootCause, is_the_rank_with_an_error_of_its_own) {
  const auto cause = find_root_cause({ended(0, 1, 0, "peer_lost"), ended(1, 2, 0, "user")});
  ASSERT_TRUE(cause);
  EXPECT_EQ(cause->rank, 1);
}

TEST(RootCause, names_the_hosts_of_the_rank_and_of_the_one_it_suspects) {
  RankEnd end = ended(1, 1, 0, "peer_lost");
  (*end.error)["suspect_rank"] = 2;
  const auto host = [](int rank) { return "n" + std::to_string(rank); };
  EXPECT_EQ(find_root_cause({end}, host)->message, "rank 1 (n1): peer_lost of 1 (rank 2 is on n2)");
  EXPECT_EQ(find_root_cause({ended(3, 7)}, host)->message, "rank 3 (n3) ended with exit code 7 and no message");
  EXPECT_EQ(find_root_cause({ended(3, 7)})->message, "rank 3 ended with exit code 7 and no message");
}

TEST(Agent, gives_each_rank_its_number_and_hears_its_messages) {
  TemporaryFolder folder;
  std::map<int, int> heard;
  AgentCallbacks callbacks;
  callbacks.on_message = [&](int rank, const nlohmann::json& message) { heard[rank] = message.at("me"); };
  const AgentResult result = run_agent(
      ranks_running("eval \"echo '{\\\"type\\\":\\\"note\\\",\\\"me\\\":$LOCKSTEP_RANK}' >&$LOCKSTEP_MESSAGE_FD\"; "
                    "echo logged; test $LOCKSTEP_WORLD_SIZE = 3",
                    3, folder),
      callbacks);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(heard, (std::map<int, int>{{0, 0}, {1, 1}, {2, 2}}));
  EXPECT_EQ(read_file(folder.path() / "rank-00002.log"), "logged\n");
}

TEST(Agent, ends_the_others_when_one_rank_is_killed) {
  TemporaryFolder folder;
  const AgentResult result = run_agent(ranks_running("if [ $LOCKSTEP_RANK = 1 ]; then kill -9 $$; fi; trap '' TERM; "
                                                     "while true; do sleep 0.1; done",
                                                     3, folder),
                                       {});
  EXPECT_EQ(result.exit_code, 1);
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->rank, 1);
}

TEST(Agent, passes_a_stop_on_and_reports_it) {
  TemporaryFolder folder;
  AgentCallbacks callbacks;
  const auto is_ready = [&](const char* rank) { return std::filesystem::exists(folder.path() / rank); };
  callbacks.stop_requests = [&] { return is_ready("0") && is_ready("1") ? 1 : 0; };
  const std::string script =
      "trap 'exit 130' INT; touch " + folder.path().string() + "/$LOCKSTEP_RANK; while true; do sleep 0.05; done";
  const AgentResult result = run_agent(ranks_running(script, 2, folder), callbacks);
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_FALSE(result.cause);
}

TEST(Agent, kills_ranks_that_ignore_a_second_stop) {
  TemporaryFolder folder;
  const double begin = monotonic_seconds();
  AgentCallbacks callbacks;
  callbacks.stop_requests = [&] { return static_cast<int>((monotonic_seconds() - begin) / 0.4); };
  const AgentResult result =
      run_agent(ranks_running("trap '' INT; while true; do sleep 0.05; done", 2, folder), callbacks);
  EXPECT_EQ(result.exit_code, 130);
}

TEST(Agent, hands_a_fault_that_happened_to_nobody_else) {
  TemporaryFolder folder;
  AgentOptions options = ranks_running(
      "say() { eval \"echo '$1' >&$LOCKSTEP_MESSAGE_FD\"; }; say '{\"type\":\"ready\"}'; "
      "eval \"read -r line <&$LOCKSTEP_MESSAGE_FD\"; "
      "if [[ $line == *'\"number\":0'* ]]; then say '{\"type\":\"chaos\",\"event\":0}'; kill -9 $$; fi; exit 0",
      1, folder);
  options.processes = Processes::kCommanded;
  options.recovery.standby = 1;
  options.recovery.restarts = 3;
  options.chaos = parse_chaos("kill rank=0; kill rank=0 step=99", 1);
  std::vector<std::string> happened;
  AgentCallbacks callbacks;
  callbacks.on_message = [&](int, const nlohmann::json& message) {
    if (message.value("type", "") == "chaos") happened.push_back(message.at("text"));
  };
  const AgentResult result = run_agent(options, callbacks);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.restarts, 1);
  EXPECT_EQ(happened, std::vector<std::string>{"kill rank=0"});
  ASSERT_EQ(result.chaos_left.size(), 1U);
  EXPECT_EQ(result.chaos_left[0].text, "kill rank=0 step=99");
}

// Ranks that say they are ready, wait for their place in the run, and then do `then`.
std::string commanded_rank(const std::string& then) {
  return "eval \"echo '{\\\"type\\\":\\\"ready\\\"}' >&$LOCKSTEP_MESSAGE_FD\"; eval \"read -r line "
         "<&$LOCKSTEP_MESSAGE_FD\"; " +
         then;
}

Finding finding(Severity severity, int pid = 0) { return {severity, "gpu", "x", "is broken", "replace it", pid}; }

TEST(Agent, without_another_node_tells_that_its_node_is_unhealthy_and_goes_on) {
  TemporaryFolder folder;
  const std::filesystem::path told = folder.path() / "told";
  AgentOptions options =
      ranks_running(commanded_rank("while [ ! -e " + told.string() + " ]; do sleep 0.05; done; exit 0"), 2, folder);
  options.processes = Processes::kCommanded;
  std::vector<std::string> heard;
  AgentCallbacks callbacks;
  callbacks.on_message = [&](int, const nlohmann::json& message) {
    if (message.value("type", "") == "finding") heard.push_back(message.at("what"));
    if (message.value("text", "").find("no other node can take over") != std::string::npos) {
      heard.emplace_back("kept");
      write_file_atomically(told, "");
    }
  };
  bool found = false;
  callbacks.findings = [&](const std::vector<int>&) {
    return std::exchange(found, true) ? std::vector<Finding>{} : std::vector<Finding>{finding(Severity::kFatal)};
  };
  const AgentResult result = run_agent(options, callbacks);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(heard, (std::vector<std::string>{"is broken", "kept"}));
}

TEST(Agent, names_the_unhealthy_node_when_the_run_fails_on_it) {
  TemporaryFolder folder;
  AgentOptions options = ranks_running("sleep 0.3; exit 9", 1, folder);
  AgentCallbacks callbacks;
  callbacks.findings = [&](const std::vector<int>&) { return std::vector<Finding>{finding(Severity::kFatal)}; };
  const AgentResult result = run_agent(options, callbacks);
  ASSERT_TRUE(result.cause);
  EXPECT_NE(result.cause->message.find("this node is unhealthy: gpu: is broken; replace it"), std::string::npos)
      << result.cause->message;
}

TEST(Agent, restarts_the_rank_whose_error_on_the_gpu_it_hears_of) {
  TemporaryFolder folder;
  const std::string mark = (folder.path() / "once").string();
  // The first process hangs after its error, the one that replaces it does the work.
  AgentOptions options = ranks_running(commanded_rank("if mkdir " + mark + "; then sleep 600; fi; exit 0"), 1, folder);
  options.processes = Processes::kCommanded;
  options.recovery.restarts = 1;
  options.own_end_seconds = 0.2;
  AgentCallbacks callbacks;
  bool found = false;
  callbacks.findings = [&](const std::vector<int>& pids) {
    if (found || pids.empty() || !std::filesystem::exists(mark)) return std::vector<Finding>{};
    found = true;
    return std::vector<Finding>{finding(Severity::kApplication, pids.front())};
  };
  const AgentResult result = run_agent(options, callbacks);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.restarts, 1);
}

}  // namespace
}  // namespace lockstep::elastic
