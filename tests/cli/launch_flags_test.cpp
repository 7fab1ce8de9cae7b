#include "lockstep/cli/launch_flags.h"

#include <gtest/gtest.h>

#include <functional>
#include <map>

#include "lockstep/base/error.h"

namespace lockstep::cli {
namespace {

elastic::VariableLookup variables(std::map<std::string, std::string> set) {
  return [set = std::move(set)](const std::string& name) -> std::optional<std::string> {
    const auto found = set.find(name);
    return found == set.end() ? std::nullopt : std::optional(found->second);
  };
}

std::string refusal_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

const elastic::VariableLookup kNothing = variables({});

TEST(LaunchFlags, torchruns_variables_fill_what_was_not_given) {
  LaunchFlags flags;
  flags.nproc = "2";
  fill_from_environment(flags, variables({{"PET_NPROC_PER_NODE", "8"}, {"PET_NNODES", "4"}, {"PET_STANDALONE", "1"}}));
  EXPECT_EQ(flags.nproc, "2");
  EXPECT_EQ(flags.nnodes, "4");
  EXPECT_TRUE(flags.standalone);
}

TEST(LaunchFlags, nodes_meet_where_kubeflow_says) {
  LaunchFlags flags;
  fill_from_environment(flags, variables({{"PET_NNODES", "2"},
                                          {"PET_NODE_RANK", "1"},
                                          {"PET_MASTER_ADDR", "job-master-0"},
                                          {"PET_MASTER_PORT", "23456"}}));
  const NodesAsked asked = nodes_asked(flags, "", -1, kNothing);
  ASSERT_TRUE(asked.meeting);
  EXPECT_EQ(asked.meeting->address, (elastic::NodeAddress{"job-master-0", 23456}));
  EXPECT_EQ(asked.meeting->node, 1);
}

TEST(LaunchFlags, a_range_of_nodes_and_an_endpoint_are_read_as_torchrun_reads_them) {
  LaunchFlags flags;
  flags.nnodes = "2:4";
  flags.rdzv_endpoint = "n1";
  flags.rdzv_backend = "c10d";
  flags.rdzv_conf = "join_timeout=7,last_call_timeout=3,is_host=1,read_timeout=9";
  const NodesAsked asked = nodes_asked(flags, "", -1, kNothing);
  EXPECT_EQ(asked.fewest, 2);
  EXPECT_EQ(asked.most, 4);
  ASSERT_TRUE(asked.meeting);
  EXPECT_EQ(asked.meeting->address, (elastic::NodeAddress{"n1", 29400}));
  EXPECT_EQ(asked.meeting->join_seconds, 7.0);
  EXPECT_EQ(asked.meeting->last_call_seconds, 3.0);
  EXPECT_EQ(asked.meeting->is_host, std::optional(true));
  flags.rdzv_endpoint = "[fd00::1]:5000";
  EXPECT_EQ(nodes_asked(flags, "", -1, kNothing).meeting->address, (elastic::NodeAddress{"fd00::1", 5000}));
}

TEST(LaunchFlags, master_addr_in_the_environment_counts_only_with_the_number_of_nodes) {
  const auto half = variables({{"MASTER_ADDR", "n1"}, {"NODE_RANK", "1"}});
  EXPECT_FALSE(nodes_asked({}, "", -1, half).meeting);
  const auto whole = variables({{"MASTER_ADDR", "n1"}, {"NODE_RANK", "1"}, {"NNODES", "2"}});
  const NodesAsked asked = nodes_asked({}, "", -1, whole);
  ASSERT_TRUE(asked.meeting);
  EXPECT_EQ(asked.meeting->address, (elastic::NodeAddress{"n1", 29500}));
}

TEST(LaunchFlags, what_cannot_be_honoured_is_refused_with_the_reason) {
  LaunchFlags flags;
  flags.rdzv_backend = "etcd-v2";
  EXPECT_NE(refusal_of([&] { nodes_asked(flags, "", -1, kNothing); }).find("no etcd"), std::string::npos);
  flags = {};
  flags.nnodes = "4:2";
  EXPECT_FALSE(refusal_of([&] { nodes_asked(flags, "", -1, kNothing); }).empty());
  flags = {};
  flags.nnodes = "2";
  flags.standalone = true;
  EXPECT_FALSE(refusal_of([&] { nodes_asked(flags, "", -1, kNothing); }).empty());
  for (std::string LaunchFlags::*flag : {&LaunchFlags::logs_specs, &LaunchFlags::numa_binding}) {
    flags = {};
    flags.*flag = "x";
    EXPECT_FALSE(refusal_of([&] { require_honoured(flags); }).empty());
  }
  flags = {};
  flags.signals = "SIGTERM,SIGUSR2";
  EXPECT_NE(refusal_of([&] { require_honoured(flags); }).find("SIGUSR2"), std::string::npos);
}

TEST(LaunchFlags, processes_are_counted_from_numbers_cores_and_gpus) {
  EXPECT_EQ(processes_per_node("", kNothing), 1);
  EXPECT_EQ(processes_per_node("7", kNothing), 7);
  EXPECT_GE(processes_per_node("cpu", kNothing), 1);
  EXPECT_EQ(processes_per_node("gpu", variables({{"CUDA_VISIBLE_DEVICES", "0,2,3"}})), 3);
  EXPECT_EQ(processes_per_node("auto", variables({{"CUDA_VISIBLE_DEVICES", "-1"}})),
            processes_per_node("cpu", kNothing));
  EXPECT_THROW(processes_per_node("gpu", variables({{"CUDA_VISIBLE_DEVICES", "-1"}})), UserError);
  for (const char* wrong : {"0", "-1", "four", "4x", "99999"}) {
    EXPECT_THROW(processes_per_node(wrong, kNothing), UserError) << wrong;
  }
}

TEST(LaunchFlags, redirects_tee_and_filter_decide_what_the_terminal_shows) {
  LaunchFlags flags;
  EXPECT_TRUE(Shown(flags).on_terminal(5, true));
  flags.redirects = "3";
  EXPECT_FALSE(Shown(flags).on_terminal(0, false));
  flags.tee = "1:3";
  EXPECT_TRUE(Shown(flags).on_terminal(1, false));
  EXPECT_FALSE(Shown(flags).on_terminal(0, true));
  flags = {};
  flags.redirects = "0:1,1:2";
  EXPECT_FALSE(Shown(flags).on_terminal(0, false));
  EXPECT_TRUE(Shown(flags).on_terminal(0, true));
  EXPECT_FALSE(Shown(flags).on_terminal(1, true));
  EXPECT_TRUE(Shown(flags).on_terminal(2, true));
  flags = {};
  flags.local_ranks_filter = "0,2";
  EXPECT_TRUE(Shown(flags).on_terminal(2, false));
  EXPECT_FALSE(Shown(flags).on_terminal(1, false));
  flags.stdout_filters = "apple,or,,ange";
  EXPECT_TRUE(Shown(flags).is_copied(false, "an or,ange"));
  EXPECT_FALSE(Shown(flags).is_copied(false, "an orange"));
  EXPECT_FALSE(Shown(flags).is_copied(true, "apple"));
}

TEST(LaunchFlags, the_program_is_what_torchrun_would_run) {
  using Words = std::vector<std::string>;
  LaunchFlags flags;
  EXPECT_EQ(program_of(flags, {"train.py", "--lr", "1"}, false, kNothing),
            (Words{"python3", "-u", "train.py", "--lr", "1"}));
  EXPECT_EQ(program_of(flags, {"train.py"}, false, variables({{"PYTHON_EXEC", "/opt/py"}})),
            (Words{"/opt/py", "-u", "train.py"}));
  EXPECT_EQ(program_of(flags, {"./train.py"}, true, kNothing), Words{"./train.py"})
      << "after -- it is the program itself";
  EXPECT_THROW(program_of(flags, {"train"}, false, kNothing), UserError);
  flags.module = true;
  EXPECT_EQ(program_of(flags, {"pkg.train", "-x"}, false, kNothing), (Words{"python3", "-u", "-m", "pkg.train", "-x"}));
  flags = {};
  flags.no_python = true;
  EXPECT_EQ(program_of(flags, {"./run.sh"}, false, kNothing), Words{"./run.sh"});
}

TEST(LaunchFlags, those_of_commands_are_told_from_those_about_nodes) {
  LaunchFlags flags;
  flags.nnodes = "2";
  flags.rdzv_endpoint = "n1";
  EXPECT_EQ(flag_of_commands(flags), nullptr);
  flags.tee = "3";
  EXPECT_NE(flag_of_commands(flags), nullptr);
}

}  // namespace
}  // namespace lockstep::cli
