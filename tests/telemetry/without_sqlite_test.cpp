// Compiled with no_sqlite.cpp in place of the tables.
#include <gtest/gtest.h>

#include <fstream>

#include "lockstep/base/file.h"
#include "lockstep/cli/verbs.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"
#include "lockstep/telemetry/study_store.h"

namespace lockstep::telemetry {
namespace {

class WithoutSqlite : public ::testing::Test {
 protected:
  WithoutSqlite() {
    ::setenv("LOCKSTEP_HOME", home_.path().c_str(), 1);
    auto owner = open_recorder(home_.path(), "r", -1);
    owner->begin_run(describe_this_process({.id = "r", .name = "job", .world = 2, .backend = "nccl"}));
    for (int rank = 0; rank < 2; ++rank) {
      auto recorder = open_recorder(home_.path(), "r", rank);
      for (int step = 1; step <= 5; ++step)
        recorder->metrics(rank, step, {{"loss", 1.0 / step}, {"step_seconds", 0.5}});
    }
    owner->end_run(RunStatus::kDone, "", {});
  }
  // What `lockstep report ...` prints.
  static std::string report(std::vector<std::string> arguments) {
    CLI::App app;
    cli::Outcome outcome;
    cli::add_report(app, outcome);
    arguments.insert(arguments.begin(), "report");
    std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them from the back
    ::testing::internal::CaptureStdout();
    app.parse(arguments);
    EXPECT_EQ(outcome.exit_code, 0);
    return ::testing::internal::GetCapturedStdout();
  }
  TemporaryFolder home_;
};

TEST_F(WithoutSqlite, there_are_no_tables) {
  EXPECT_FALSE(has_sqlite());
  EXPECT_EQ(make_sqlite_run_store(home_.path() / "runs.db"), nullptr);
  EXPECT_FALSE(std::filesystem::exists(home_.path() / "runs.db"));
}

TEST_F(WithoutSqlite, the_report_shows_the_run_with_all_its_ranks) {
  const auto page = nlohmann::json::parse(report({"last", "--json"}));
  EXPECT_EQ(page.at("run").at("id"), "r");
  EXPECT_EQ(page.at("run").at("status"), "done");
  EXPECT_EQ(page.at("run").at("backend"), "nccl");
  EXPECT_EQ(page.at("ranks").size(), 2u);
  EXPECT_EQ(page.at("loss").size(), 5u);
  EXPECT_NE(report({}).find("2 ranks over nccl"), std::string::npos);
  EXPECT_NE(report({"--list"}).find("done"), std::string::npos);
}

TEST_F(WithoutSqlite, a_store_of_another_build_in_the_same_home_is_passed_over_with_a_warning) {
  std::ofstream(home_.path() / "runs.db") << "SQLite format 3";
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(open_run_store(home_.path())->runs().size(), 1u);
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("no SQLite"), std::string::npos);
}

TEST_F(WithoutSqlite, studies_are_kept_as_json_lines) {
  open_study_store(home_.path())->create({.id = "s", .name = "n", .space_yaml = ""});
  EXPECT_EQ(open_study_store(home_.path(), false)->find("last")->info.id, "s");
}

}  // namespace
}  // namespace lockstep::telemetry
