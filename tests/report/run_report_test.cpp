#include "lockstep/report/run_report.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/progress.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::report {
namespace {

using namespace lockstep::telemetry;

class Report : public ::testing::TestWithParam<bool> {
 protected:
  // 4 ranks, 40 steps; rank 2 computes 30% longer; the first 5 steps are slow, as warm-up is.
  void write_run(RunStore& store, const std::string& rate = "tokens_per_second") {
    std::vector<Record> records = {
        describe_this_process({.id = "run-1", .name = "job", .world = 4, .backend = "gloo"}),
        PlanRecord{
            {{"best",
              {{"prediction", {{rate, 1000.0}, {"intervals", {{rate, {{"low", 900.0}, {"high", 1100.0}}}}}}}}}}}};
    for (int step = 1; step <= 40; ++step) {
      for (int rank = 0; rank < 4; ++rank) {
        MetricBatch batch{rank, step, 100.0 + step, {{"step_seconds", step <= 5 ? 2.0 : 0.5}}};
        batch.metrics.push_back({"compute_seconds", rank == 2 ? 0.39 : 0.3});
        batch.metrics.push_back({"memory_bytes", 1e9 + rank * 1e6});
        if (rank == 0) {
          batch.metrics.push_back({"loss", 5.0 / step});
          batch.metrics.push_back({rate, step <= 5 ? 100.0 : 950.0});
        }
        records.push_back(batch);
      }
    }
    records.push_back(Event{120, Level::kInfo, "checkpoint", 0, 20, "saved to /x", {{"seconds", 1.5}}});
    records.push_back(Event{121, Level::kWarning, "slow", 2, 21, "rank 2 is\nslow\033[31m"});
    records.push_back(RunEnd{150, RunStatus::kDone, "", {{"final_loss", 0.125}}});
    store.write("run-1", records);
  }
  void SetUp() override {
    if (GetParam() && !has_sqlite()) GTEST_SKIP() << "no SQLite in this build";
  }
  std::unique_ptr<RunStore> open() const {
    return GetParam() ? make_sqlite_run_store(folder_.path() / "runs.db") : make_json_lines_run_store(folder_.path());
  }
  TemporaryFolder folder_;
};

TEST_P(Report, puts_prediction_and_measurement_side_by_side) {
  const auto store = open();
  write_run(*store);
  const RunReport report = make_run_report(*store, "last");
  EXPECT_EQ(report.predicted.per_second.expected, 1000.0);
  EXPECT_EQ(report.measured_per_second, 950.0) << "the median of the steps after warm-up";
  EXPECT_NEAR(report.residual(), -0.05, 1e-12);
  EXPECT_EQ(report.steps(), 40);
  EXPECT_EQ(report.memory.peak_bytes, 1e9 + 3e6);
}

TEST_P(Report, names_the_straggler_by_its_compute_time) {
  const auto store = open();
  write_run(*store);
  const RunReport report = make_run_report(*store, "run-1");
  ASSERT_EQ(report.ranks.size(), 4u);
  for (const Standing& rank : report.standings) EXPECT_EQ(rank.straggler, rank.rank == 2) << rank.rank;
  EXPECT_NEAR(report.standings[2].slowdown, 0.3, 1e-9);
  EXPECT_NEAR(report.ranks[0].mean.step, 0.5, 0.06) << "without warm-up";
}

TEST_P(Report, tells_it_all_in_text_without_control_characters) {
  const auto store = open();
  write_run(*store);
  const std::string text = to_text(make_run_report(*store, "run"));
  for (const char* part : {"run run-1", "done", "4 ranks over gloo", "residual", "-5.0%", "straggler", "checkpoints",
                           "step 20", "saved to /x", "slow", "loss"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  EXPECT_EQ(text.find('\033'), std::string::npos);
  for (const std::string& line : split(text, '\n')) EXPECT_LE(display_width(line), 100) << line;
  EXPECT_NE(to_text(make_run_report(*store, "run"), {.colour = true}).find("\033[32mdone"), std::string::npos);
}

TEST_P(Report, has_a_versioned_json_form) {
  const auto store = open();
  write_run(*store, "samples_per_second");
  const auto json = to_json(make_run_report(*store, "last"));
  EXPECT_EQ(json.at("schema"), "lockstep.report/1");
  EXPECT_EQ(json.at("unit"), "samples");
  EXPECT_EQ(json.at("run").at("status"), "done");
  EXPECT_EQ(json.at("run").at("summary").at("final_loss"), 0.125);
  EXPECT_EQ(json.at("predicted_per_second"), 1000.0);
  EXPECT_EQ(json.at("ranks").size(), 4u);
  EXPECT_EQ(json.at("events").size(), 2u);
  EXPECT_EQ(json.at("loss").size(), 40u);
}

TEST_P(Report, copes_with_a_run_that_recorded_nothing) {
  const auto store = open();
  store->write("empty", std::vector<Record>{describe_this_process({.id = "empty"})});
  const RunReport report = make_run_report(*store, "last");
  EXPECT_NE(to_text(report).find("no prediction"), std::string::npos);
  EXPECT_TRUE(to_json(report).at("residual").is_null());
}

TEST_P(Report, says_what_to_do_when_there_is_no_run) {
  const auto store = open();
  try {
    make_run_report(*store, "last");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("lockstep demo"), std::string::npos);
  }
  EXPECT_THROW(make_run_report(*store, "nobody"), UserError);
}

INSTANTIATE_TEST_SUITE_P(Stores, Report, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "sqlite" : "json_lines"; });

// A run of two nodes: the first rank in the tables, the others in files that were written or brought here.
TEST(JoinedReport, has_the_ranks_of_all_nodes) {
  const TemporaryFolder home;
  const auto first =
      has_sqlite() ? make_sqlite_run_store(store_file(home.path())) : make_json_lines_run_store(home.path());
  first->write("r", std::vector<Record>{describe_this_process({.id = "r", .world = 3}),
                                        MetricBatch{0, 1, 5, {{"step_seconds", 1.0}, {"loss", 2.0}}}});
  make_json_lines_run_store(home.path(), 2)
      ->write("r", std::vector<Record>{MetricBatch{2, 1, 5, {{"step_seconds", 1.5}}}, Event{6, Level::kInfo, "k", 2}});
  first->write("r", std::vector<Record>{Event{7, Level::kInfo, "k", 0}, RunEnd{8, RunStatus::kDone, "", {}}});
  const RunReport report = make_run_report(*open_run_store(home.path()), "last");
  ASSERT_EQ(report.ranks.size(), 2u);
  EXPECT_EQ(report.ranks[1].rank, 2);
  EXPECT_EQ(report.ranks[1].mean.step, 1.5);
  EXPECT_EQ(report.missing_ranks, (std::vector<int>{1}));
  EXPECT_NE(to_text(report).find("no records of 1 rank here, rank 1 first\n"), std::string::npos)
      << "nobody said where";
  EXPECT_EQ(report.run.status, RunStatus::kDone);
  ASSERT_EQ(report.events.size(), 2u);
  EXPECT_EQ(report.events[0].rank, 2) << "in order of time";
  EXPECT_FALSE(to_json(report).contains("spans"));
}

TEST(JoinedReport, names_the_nodes_whose_records_are_missing) {
  const TemporaryFolder home;
  const auto store = make_json_lines_run_store(home.path());
  const auto placed = [](std::vector<int> nodes, std::vector<std::string> hosts, double time) {
    return Event{.time = time,
                 .level = Level::kDebug,
                 .kind = std::string(event_kind::kPlacement),
                 .data = {{"nodes", std::move(nodes)}, {"hosts", std::move(hosts)}}};
  };
  store->write("r",
               std::vector<Record>{
                   describe_this_process({.id = "r", .world = 4}), placed({0, 0, 1, 1}, {"n1", "gone"}, 1),
                   placed({0, 0, 1, 1}, {"n1", "n3\x1b[31m"}, 2), MetricBatch{0, 1, 5, {{"step_seconds", 1.0}}},
                   MetricBatch{1, 1, 5, {{"step_seconds", 1.0}}}, RunEnd{8, RunStatus::kFailed, "rank 2: lost", {}}});
  const std::string text = to_text(make_run_report(*store, "r"));
  EXPECT_NE(text.find("no records of 2 ranks here, rank 2 first; they ran on n3"), std::string::npos) << text;
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find("gone"), std::string::npos) << "the newest placement counts";
}

}  // namespace
}  // namespace lockstep::report
