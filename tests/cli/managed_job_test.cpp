#include "lockstep/cli/managed_job.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::cli {
namespace {

using Words = std::vector<std::string>;

class ManagedJob : public ::testing::Test {
 protected:
  void SetUp() override { unsetenv("LOCKSTEP_JOB"); }
  void TearDown() override {
    unsetenv("LOCKSTEP_JOB");
    std::filesystem::remove(file_);
  }

  Words from_file(const std::string& text, const Words& words = {"train"}) {
    write_file_atomically(file_, text);
    return with_managed_job(words, file_);
  }

  const std::filesystem::path file_ = std::filesystem::path(::testing::TempDir()) / "hyperparameters.json";
};

TEST_F(ManagedJob, train_alone_launches_the_job_of_the_variable) {
  setenv("LOCKSTEP_JOB", "/data/job file.yaml", 1);
  EXPECT_EQ(with_managed_job({"train"}, file_), (Words{"launch", "/data/job file.yaml"}));
  EXPECT_EQ(with_managed_job({"launch"}, file_), (Words{"launch", "/data/job file.yaml"}));
}

TEST_F(ManagedJob, words_of_a_user_are_left_alone) {
  setenv("LOCKSTEP_JOB", "other.yaml", 1);
  for (const Words& words : {Words{}, Words{"train", "job.yaml"}, Words{"plan"}, Words{"--version"}}) {
    EXPECT_EQ(with_managed_job(words, file_), words);
  }
}

TEST_F(ManagedJob, without_a_job_nothing_changes) { EXPECT_EQ(with_managed_job({"train"}, file_), Words{"train"}); }

TEST_F(ManagedJob, hyperparameters_are_the_job_and_overrides) {
  EXPECT_EQ(from_file(R"({"job": "/opt/ml/input/data/job/job.yaml", "steps": "30", "batch.micro": "8"})"),
            (Words{"launch", "/opt/ml/input/data/job/job.yaml", "batch.micro=8", "steps=30"}));
}

TEST_F(ManagedJob, values_that_the_python_library_wrote_as_json_are_unwrapped) {
  EXPECT_EQ(from_file(R"({"job": "\"job.yaml\"", "data.path": "\"/data\"", "sagemaker_region": "\"x\""})"),
            (Words{"launch", "job.yaml", "data.path=/data"}));
}

TEST_F(ManagedJob, hostile_hyperparameters_become_neither_flags_nor_commands) {
  EXPECT_EQ(from_file(R"({"job": "$(id).yaml", "name": "--chaos=kill rank=0\n; rm -rf /"})"),
            (Words{"launch", "$(id).yaml", "name=--chaos=kill rank=0\n; rm -rf /"}));
  EXPECT_THROW(from_file(R"({"job": "--help"})"), UserError);
  EXPECT_THROW(from_file(R"({"job": "job.yaml", "--chaos": "kill rank=0"})"), UserError);
  EXPECT_THROW(from_file(R"({"job": "job.yaml", "a\nb": "1"})"), UserError);
}

TEST_F(ManagedJob, a_file_without_a_job_is_refused) {
  EXPECT_THROW(from_file("{}"), UserError);
  EXPECT_THROW(from_file("not json"), UserError);
  EXPECT_THROW(from_file(R"({"job": ""})"), UserError);
  setenv("LOCKSTEP_JOB", "-v", 1);
  EXPECT_THROW(with_managed_job({"train"}, file_), UserError);
}

}  // namespace
}  // namespace lockstep::cli
