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

AgentOptions foreign(const std::string& script, int world, int restarts, const TemporaryFolder& folder) {
  AgentOptions options = ranks_running(script, world, folder);
  options.processes = Processes::kForeign;
  options.recovery.restarts = restarts;
  options.recovery.leave_seconds = 2.0;
  return options;
}

TEST(ForeignProcesses, get_torchruns_variables_and_are_heard_line_by_line) {
  TemporaryFolder folder;
  std::map<int, std::string> said;
  AgentCallbacks callbacks;
  callbacks.on_output = [&](const PrintedLine& line) { said[line.rank] += line.text + "|"; };
  const AgentResult result = run_agent(
      foreign(
          "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE "
          "$ROLE_RANK/$ROLE_WORLD_SIZE $TORCHELASTIC_RESTART_COUNT $MASTER_ADDR ${TORCHELASTIC_USE_AGENT_STORE-none}; "
          "test $MASTER_PORT -gt 1024 && echo port; printf half",
          2, 0, folder),
      callbacks);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(said[1], "1/2 1/2 0/1 1/2 0 127.0.0.1 none|port|half|");
  EXPECT_NE(read_file(folder.path() / "rank-00001.log").find("--- generation 1: rank 1"), std::string::npos);
}

TEST(ForeignProcesses, begin_again_as_a_whole_when_one_is_killed) {
  TemporaryFolder folder;
  std::vector<int> generations;
  std::vector<std::string> failures;
  AgentCallbacks callbacks;
  callbacks.on_generation = [&](int generation, int world, int) {
    generations.push_back(generation);
    EXPECT_EQ(world, 3);
  };
  callbacks.on_failure = [&](const RootCause& cause) { failures.push_back(cause.message); };
  // Of the first generation rank 1 dies; the others would wait for ever.
  const AgentResult result =
      run_agent(foreign("echo $MASTER_PORT >>" + folder.path().string() +
                            "/ports; if [ $TORCHELASTIC_RESTART_COUNT = 0 ]; then if [ $RANK = 1 "
                            "]; then sleep 0.3; kill -9 $$; fi; sleep 600; fi",
                        3, 3, folder),
                callbacks);
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.restarts, 1);
  EXPECT_EQ(generations, (std::vector<int>{1, 2}));
  ASSERT_EQ(failures.size(), 1u);
  EXPECT_EQ(failures[0].rfind("rank 1 was killed", 0), 0u) << failures[0];
  const std::string ports = read_file(folder.path() / "ports");
  EXPECT_NE(ports.substr(0, 5), ports.substr(ports.size() - 6, 5)) << "a fresh port for each generation: " << ports;
}

TEST(ForeignProcesses, show_the_first_failure_with_its_exit_code_and_last_words) {
  TemporaryFolder folder;
  const AgentResult result =
      run_agent(foreign("if [ $RANK = 1 ]; then echo 'disk is on fire' >&2; exit 7; fi; sleep 600", 2, 0, folder), {});
  EXPECT_EQ(result.exit_code, 7);
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->message, "rank 1: disk is on fire (exit code 7)");
  EXPECT_EQ(result.cause->details, "disk is on fire\n");
}

TEST(ForeignProcesses, tell_what_torchs_record_wrote_into_the_error_file) {
  TemporaryFolder folder;
  const AgentResult result = run_agent(
      foreign("echo '{\"message\": {\"message\": \"ValueError: bad shape\", \"extraInfo\": {\"py_callstack\": "
              "\"line 3\"}}}' > $TORCHELASTIC_ERROR_FILE; echo noise >&2; exit 1",
              1, 0, folder),
      {});
  ASSERT_TRUE(result.cause);
  EXPECT_EQ(result.cause->message, "rank 0: ValueError: bad shape (exit code 1)");
  EXPECT_EQ(result.cause->details, "line 3");
}

TEST(ForeignProcesses, are_killed_when_they_do_not_end_after_sigterm) {
  TemporaryFolder folder;
  AgentOptions options = foreign(
      "if [ $TORCHELASTIC_RESTART_COUNT = 1 ]; then exit 0; fi; if [ $RANK = 1 ]; then sleep 0.3; exit 1; fi; trap '' "
      "TERM; "
      "while true; do sleep 0.1; done",
      2, 1, folder);
  options.recovery.leave_seconds = 0.5;
  const AgentResult result = run_agent(options, {});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.restarts, 1);
}

TEST(ForeignProcesses, get_the_signal_that_asked_for_the_stop) {
  TemporaryFolder folder;
  AgentCallbacks callbacks;
  callbacks.stop_requests = [&] { return std::filesystem::exists(folder.path() / "ready") ? 1 : 0; };
  callbacks.stop_signal = [] { return SIGTERM; };
  const std::string path = folder.path().string();
  const AgentResult result = run_agent(foreign("trap 'echo saved > " + path + "/saved; exit 0' TERM; touch " + path +
                                                   "/ready; while true; do sleep 0.05; done",
                                               1, 3, folder),
                                       callbacks);
  EXPECT_EQ(result.exit_code, 130);
  EXPECT_FALSE(result.cause);
  EXPECT_EQ(read_file(folder.path() / "saved"), "saved\n");
}

TEST(ForeignProcesses, leave_nothing_behind_that_they_started) {
  TemporaryFolder folder;
  const std::string file = (folder.path() / "pid").string();
  run_agent(foreign("sleep 600 & echo $! > " + file + "; exit 0", 1, 0, folder), {});
  const int pid = std::stoi(read_file(file));
  const Deadline deadline = Deadline::after(10.0);  // it is init's to reap
  while (::kill(pid, 0) == 0 && !deadline.expired()) {
    const std::string state = read_file("/proc/" + std::to_string(pid) + "/stat");
    if (state.find(") Z") != std::string::npos) break;
  }
  EXPECT_FALSE(deadline.expired());
}

TEST(ForeignProcesses, cannot_say_anything_that_upsets_the_agent) {
  TemporaryFolder folder;
  const std::string script =
      "for line in '{\"type\":\"lost\",\"generation\":1}' '{\"type\":5}' '{\"type\":\"heartbeat\",\"step\":\"x\"}' "
      "'[1]' "
      "'nonsense' '{\"type\":\"heartbeat\",\"step\":3,\"generation\":1}'; do eval \"echo '$line' "
      ">&$LOCKSTEP_MESSAGE_FD\"; done; sleep 0.2";
  const AgentResult result = run_agent(foreign(script, 1, 0, folder), {});
  EXPECT_EQ(result.exit_code, 0);
}

}  // namespace
}  // namespace lockstep::elastic
