#include "lockstep/elastic/rank_environment.h"

#include <gtest/gtest.h>

#include <map>

#include "lockstep/base/error.h"

namespace lockstep::elastic {
namespace {

VariableLookup variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional(found->second);
  };
}

TEST(RankEnvironment, is_absent_when_started_by_hand) { EXPECT_FALSE(detect_rank_environment(variables({}))); }

TEST(RankEnvironment, reads_torchrun_variables) {
  const auto found = detect_rank_environment(variables({{"RANK", "5"},
                                                        {"WORLD_SIZE", "8"},
                                                        {"LOCAL_RANK", "1"},
                                                        {"LOCAL_WORLD_SIZE", "4"},
                                                        {"MASTER_ADDR", "node0"},
                                                        {"MASTER_PORT", "29500"}}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 5);
  EXPECT_EQ(found->world, 8);
  EXPECT_EQ(found->local_rank, 1);
  EXPECT_EQ(found->master_host, "node0");
  EXPECT_EQ(found->master_port, 29500);
  EXPECT_FALSE(found->one_node);
}

TEST(RankEnvironment, prefers_its_own_variables_over_torchrun) {
  const auto found = detect_rank_environment(
      variables({{"RANK", "5"}, {"WORLD_SIZE", "8"}, {"LOCKSTEP_RANK", "1"}, {"LOCKSTEP_WORLD_SIZE", "2"}}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->source, "lockstep");
  EXPECT_EQ(found->world, 2);
}

TEST(RankEnvironment, finds_the_first_node_of_a_slurm_step) {
  const auto found = detect_rank_environment(variables({{"SLURM_PROCID", "3"},
                                                        {"SLURM_STEP_NUM_TASKS", "4"},
                                                        {"SLURM_STEP_NUM_NODES", "2"},
                                                        {"SLURM_LOCALID", "1"},
                                                        {"SLURM_STEP_NODELIST", "gpu[07-08]"},
                                                        {"SLURM_JOB_ID", "77"},
                                                        {"SLURM_STEP_ID", "0"}}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->rank, 3);
  EXPECT_EQ(found->master_host, "gpu07");
  EXPECT_EQ(found->local_world, 2);
  EXPECT_GE(found->master_port, 20000);
  EXPECT_LT(found->master_port, 30000);
}

TEST(RankEnvironment, takes_a_batch_script_without_a_step_as_by_hand) {
  EXPECT_FALSE(detect_rank_environment(variables({{"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "8"}})));
}

TEST(RankEnvironment, stays_on_loopback_when_a_slurm_step_has_one_node) {
  const auto found = detect_rank_environment(variables({{"SLURM_PROCID", "0"}, {"SLURM_STEP_NUM_TASKS", "2"}}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->master_host, "127.0.0.1");
}

TEST(RankEnvironment, reads_open_mpi_variables) {
  const auto found = detect_rank_environment(variables({{"OMPI_COMM_WORLD_RANK", "2"},
                                                        {"OMPI_COMM_WORLD_SIZE", "4"},
                                                        {"OMPI_COMM_WORLD_LOCAL_RANK", "2"},
                                                        {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"}}));
  ASSERT_TRUE(found);
  EXPECT_EQ(found->source, "openmpi");
  EXPECT_TRUE(found->one_node);
}

TEST(RankEnvironment, names_the_variable_that_is_missing) {
  try {
    detect_rank_environment(variables({{"LOCKSTEP_RANK", "1"}}));
    FAIL() << "half an environment was accepted";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("LOCKSTEP_WORLD_SIZE"), std::string::npos);
    EXPECT_EQ(error.code(), ExitCode::kUsage);
  }
}

TEST(RankEnvironment, refuses_numbers_that_are_none_and_ranks_beyond_the_world) {
  EXPECT_THROW(detect_rank_environment(variables({{"RANK", "x"}, {"WORLD_SIZE", "2"}})), UserError);
  EXPECT_THROW(detect_rank_environment(variables({{"RANK", "2"}, {"WORLD_SIZE", "2"}})), UserError);
  EXPECT_THROW(detect_rank_environment(variables({{"RANK", "-1"}, {"WORLD_SIZE", "2"}})), UserError);
}

}  // namespace
}  // namespace lockstep::elastic
