// Studies for other tools: CSV and Optuna's storage.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/planner/rows/csv.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"
#include "lockstep/telemetry/sqlite.h"
#include "lockstep/tune/study/export_csv.h"
#include "lockstep/tune/study/export_optuna.h"
#include "tests/tune/stored_study_fixture.h"

namespace lockstep::tune {
namespace {

StoredStudy stored_study(const TemporaryFolder& folder, const char* yaml = kSmallSpace) {
  const std::shared_ptr<telemetry::StudyStore> store =
      telemetry::make_json_lines_study_store(folder.path() / "studies");
  const Space space = Space::parse(yaml, "small.yaml");
  OpenStudy study = create_study(store, space, small_setup());
  if (yaml == kSmallSpace) journal_all(*study.journal, small_trials(space));
  study.journal->conclude({{"best", {{"estimate", 150}}}});
  return load_study(*store, study.study.id());
}

TEST(ExportCsv, has_one_row_per_trial_and_one_column_per_knob) {
  const TemporaryFolder folder;
  const planner::CsvTable table = planner::parse_csv(to_csv(stored_study(folder)), "out.csv");
  ASSERT_EQ(table.rows.size(), 7u);
  const auto cell = [&](std::size_t row, const std::string& column) {
    const auto at = std::find(table.columns.begin(), table.columns.end(), column);
    return at == table.columns.end() ? "no such column" : table.rows[row][std::size_t(at - table.columns.begin())];
  };
  EXPECT_EQ(cell(0, "purpose"), "baseline");
  EXPECT_EQ(cell(0, "algo"), "Ring");
  EXPECT_EQ(cell(0, "throughput"), "100");
  EXPECT_EQ(cell(0, "unit"), "samples/s");
  EXPECT_EQ(cell(0, "started_at"), "2027-01-15T08:00:00.250Z");
  EXPECT_EQ(cell(2, "outcome"), "oom");
  EXPECT_EQ(cell(2, "throughput"), "");
  EXPECT_EQ(cell(2, "message"), "CUDA out of memory, \"tried\" to allocate,\n2 GiB");
  EXPECT_EQ(cell(3, "workers"), "0");
  EXPECT_EQ(cell(3, "prefetch"), "") << "inactive";
  EXPECT_EQ(cell(4, "micro"), "4");
  EXPECT_EQ(cell(6, "set_back"), "algo");
  EXPECT_EQ(cell(1, "dropout"), "0.1");
}

TEST(ExportCsv, tells_a_knob_from_a_column_of_the_same_name) {
  const TemporaryFolder folder;
  const std::string text = to_csv(stored_study(folder, "knobs: {seconds: {int: [1, 2]}, other: {int: [1, 2]}}"));
  EXPECT_NE(text.find(",knob.seconds,other\n"), std::string::npos) << text;
}

TEST(ExportCsv, holds_nothing_that_a_spreadsheet_would_execute) {
  const TemporaryFolder folder;
  const std::shared_ptr<telemetry::StudyStore> store = telemetry::make_json_lines_study_store(folder.path());
  const char* const yaml =
      "knobs: {flag: {choices: ['=HYPERLINK(1)', '-x', 'ok']}, shift: {int: [-4, 4], default: -1}}";
  const Space space = Space::parse(yaml, "s.yaml");
  StudySetup setup = small_setup();
  setup.unit = "@SUM(1)";
  OpenStudy study = create_study(store, space, setup);
  journal_all(*study.journal, {failed_trial(0, space.default_config(), Outcome::kInvalid, "+cmd|' /C calc'!A0"),
                               failed_trial(1, with(space, "flag", std::string("-x")), Outcome::kInvalid, "\t=1+1")});
  const planner::CsvTable table = planner::parse_csv(to_csv(load_study(*store, study.study.id())), "out.csv");
  const auto cells = [&](const std::string& column) {
    const auto at = std::size_t(std::find(table.columns.begin(), table.columns.end(), column) - table.columns.begin());
    return std::vector<std::string>{table.rows.at(0).at(at), table.rows.at(1).at(at)};
  };
  EXPECT_EQ(cells("message"), (std::vector<std::string>{"'+cmd|' /C calc'!A0", "'\t=1+1"}));
  EXPECT_EQ(cells("flag"), (std::vector<std::string>{"'=HYPERLINK(1)", "'-x"}));
  EXPECT_EQ(cells("unit"), (std::vector<std::string>{"'@SUM(1)", "'@SUM(1)"}));
  EXPECT_EQ(cells("shift"), (std::vector<std::string>{"-1", "-1"})) << "a number stays one";
}

class ExportOptuna : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!telemetry::has_sqlite()) GTEST_SKIP() << "no SQLite in this build";
  }
  std::filesystem::path file() const { return folder_.path() / "optuna.db"; }
  TemporaryFolder folder_;
};

TEST_F(ExportOptuna, writes_the_tables_that_optuna_reads) {
  const StoredStudy study = stored_study(folder_);
  export_optuna(study, file(), "my study");
  telemetry::Database database(file(), false, 1);
  const auto text = [&](const char* sql) { return database.query_text(sql); };
  EXPECT_EQ(text("PRAGMA integrity_check"), "ok");
  EXPECT_EQ(text("PRAGMA foreign_key_check"), "");
  EXPECT_EQ(text("SELECT version_num FROM alembic_version"), "v3.2.0.a");
  EXPECT_EQ(text("SELECT study_name FROM studies"), "my study");
  EXPECT_EQ(text("SELECT direction FROM study_directions"), "MAXIMIZE");
  EXPECT_EQ(text("SELECT group_concat(state) FROM (SELECT state FROM trials ORDER BY number)"),
            "COMPLETE,COMPLETE,FAIL,COMPLETE,COMPLETE,COMPLETE,COMPLETE");
  EXPECT_EQ(database.query_integer("SELECT count(*) FROM trial_values"), 6);
  EXPECT_EQ(text("SELECT value FROM trial_values WHERE trial_id = 5"), "150.0");
  EXPECT_EQ(database.query_integer("SELECT count(*) FROM trial_params WHERE trial_id = 1"), 7);
  EXPECT_EQ(database.query_integer("SELECT count(*) FROM trial_params WHERE trial_id = 4"), 6)
      << "prefetch is inactive";
  EXPECT_EQ(text("SELECT param_value FROM trial_params WHERE trial_id = 5 AND param_name = 'algo'"), "1.0");
  EXPECT_EQ(text("SELECT param_value FROM trial_params WHERE trial_id = 6 AND param_name = 'bucket'"), "200.0");
  EXPECT_EQ(
      nlohmann::json::parse(text("SELECT distribution_json FROM trial_params WHERE param_name = 'bucket'")),
      nlohmann::json::parse(R"({"name":"IntDistribution","attributes":{"log":true,"step":1,"low":1,"high":256}})"));
  EXPECT_EQ(text("SELECT value_json FROM trial_user_attributes WHERE trial_id = 7 AND \"key\" = 'set_back'"),
            "\"algo\"");
}

TEST_F(ExportOptuna, never_writes_over_a_file) {
  const StoredStudy study = stored_study(folder_);
  std::ofstream(file()) << "mine";
  EXPECT_THROW(export_optuna(study, file()), UserError);
  EXPECT_EQ(read_file(file()), "mine");
  EXPECT_THROW(export_optuna(study, folder_.path() / "no/such/folder/x.db"), UserError);
}

}  // namespace
}  // namespace lockstep::tune
