#include "lockstep/telemetry/run_store.h"

#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/telemetry/study_store.h"

namespace lockstep::telemetry {
namespace {

using nlohmann::json;

// Raw SQL on a file, for fixtures that our own code would not make.
void raw_sql(const std::filesystem::path& path, const char* sql) {
  sqlite3* handle = nullptr;
  ASSERT_EQ(sqlite3_open(path.c_str(), &handle), SQLITE_OK);
  char* error = nullptr;
  EXPECT_EQ(sqlite3_exec(handle, sql, nullptr, nullptr, &error), SQLITE_OK) << (error ? error : "");
  sqlite3_free(error);
  sqlite3_close(handle);
}

std::string raw_value(const std::filesystem::path& path, const char* sql) {
  sqlite3* handle = nullptr;
  sqlite3_open(path.c_str(), &handle);
  sqlite3_stmt* statement = nullptr;
  sqlite3_prepare_v2(handle, sql, -1, &statement, nullptr);
  std::string value = "none";
  if (sqlite3_step(statement) == SQLITE_ROW) value = reinterpret_cast<const char*>(sqlite3_column_text(statement, 0));
  sqlite3_finalize(statement);
  sqlite3_close(handle);
  return value;
}

// Schema version 1, as it was written then, with one run in it. Do not edit.
constexpr const char* kVersion1 = R"sql(
  CREATE TABLE runs (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, started_at REAL NOT NULL,
    ended_at REAL NOT NULL DEFAULT 0, status TEXT NOT NULL DEFAULT 'running', world INTEGER NOT NULL DEFAULT 1,
    backend TEXT NOT NULL DEFAULT '', host TEXT NOT NULL DEFAULT '', pid INTEGER NOT NULL DEFAULT 0,
    job_yaml TEXT NOT NULL DEFAULT '', versions TEXT NOT NULL DEFAULT '{}', exit_reason TEXT NOT NULL DEFAULT '',
    summary TEXT NOT NULL DEFAULT '{}');
  CREATE INDEX runs_by_start ON runs (started_at);
  CREATE TABLE plans (run INTEGER PRIMARY KEY, json TEXT NOT NULL);
  CREATE TABLE names (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
  CREATE TABLE metrics (
    run INTEGER NOT NULL, name INTEGER NOT NULL, rank INTEGER NOT NULL, step INTEGER NOT NULL,
    time_ms INTEGER NOT NULL, value REAL, PRIMARY KEY (run, name, rank, step)) WITHOUT ROWID;
  CREATE TABLE events (
    number INTEGER PRIMARY KEY, run INTEGER NOT NULL, time REAL NOT NULL, rank INTEGER NOT NULL,
    step INTEGER NOT NULL, level INTEGER NOT NULL, kind TEXT NOT NULL, message TEXT NOT NULL, data TEXT NOT NULL);
  CREATE UNIQUE INDEX events_once ON events (run, time, rank, step, kind, message);
  INSERT INTO runs (number, id, name, started_at, ended_at, status, world) VALUES (1, 'old', 'job', 10, 20, 'done', 2);
  INSERT INTO names VALUES (1, 'loss');
  INSERT INTO metrics VALUES (1, 1, 0, 1, 11000, 4.5), (1, 1, 0, 2, 12000, NULL);
  INSERT INTO events VALUES (1, 1, 15, -1, -1, 2, 'note', 'hello', '{}');
  PRAGMA user_version = 1;
  PRAGMA application_id = 1280004948;
)sql";

// What migration 2 did to it, and a span. Do not edit.
constexpr const char* kVersion1To2 = R"sql(
  ALTER TABLE runs ADD COLUMN pid_started INTEGER NOT NULL DEFAULT 0;
  CREATE TABLE spans (
    run INTEGER NOT NULL, name INTEGER NOT NULL, rank INTEGER NOT NULL, start REAL NOT NULL, step INTEGER NOT NULL,
    seconds REAL NOT NULL, PRIMARY KEY (run, name, rank, start)) WITHOUT ROWID;
  UPDATE runs SET pid_started = 77;
  INSERT INTO spans VALUES (1, 1, 0, 12.5, 1, 2.5);
  PRAGMA user_version = 2;
)sql";

class RunStoreTest : public ::testing::Test {
 protected:
  std::filesystem::path path() const { return folder_.path() / "sub/runs.db"; }
  void write(RunStore& store, const std::string& run, std::vector<Record> records) { store.write(run, records); }
  RunInfo run_of_this_process(const std::string& id, double started_at) {
    RunInfo info = describe_this_process({.id = id, .name = "job", .world = 2, .backend = "gloo", .job_yaml = "a: b"});
    info.started_at = started_at;
    return info;
  }
  TemporaryFolder folder_;
};

TEST_F(RunStoreTest, gives_back_what_was_written) {
  RunStore store = RunStore::open(path());
  const RunInfo info = run_of_this_process("r1", 100.0);
  write(store, "r1",
        {info, PlanRecord{{{"best", 1}}}, MetricBatch{0, 1, 101.5, {{"loss", 4.0}, {"lr", 0.1}}},
         MetricBatch{1, 1, 101.25, {{"loss", NAN}}}, Span{0, 1, "save", 101, 0.5}, Span{0, 2, "save", 102, 1.5},
         Event{103, Level::kWarning, "k", 1, 2, "message", {{"a", 1}}}});
  auto row = store.find("r1");
  ASSERT_TRUE(row);
  EXPECT_EQ(row->info.backend, "gloo");
  EXPECT_EQ(row->info.pid, ::getpid());
  EXPECT_EQ(row->status, RunStatus::kRunning);
  EXPECT_EQ(store.plan("r1"), (json{{"best", 1}}));
  EXPECT_EQ(store.metric_names("r1"), (std::vector<std::string>{"loss", "lr"}));
  const auto loss = store.series("r1", "loss");
  ASSERT_EQ(loss.size(), 1u);
  EXPECT_EQ(loss[0].value, 4.0);
  EXPECT_EQ(loss[0].time, 101.5);
  EXPECT_TRUE(std::isnan(store.series("r1", "loss", 1).at(0).value));
  const auto events = store.events("r1");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].data, (json{{"a", 1}}));
  EXPECT_TRUE(store.events("r1", Level::kError).empty());
  const auto spans = store.spans("r1");
  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(spans[0].count, 2);
  EXPECT_EQ(spans[0].total_seconds, 2.0);
  write(store, "r1", {RunEnd{200, RunStatus::kFailed, "rank 1 died", {{"steps", 7}}}});
  row = store.find("r1");
  EXPECT_EQ(row->status, RunStatus::kFailed);
  EXPECT_EQ(row->ended_at, 200);
  EXPECT_EQ(row->exit_reason, "rank 1 died");
  EXPECT_EQ(row->summary.at("steps"), 7);
  EXPECT_EQ(store.integrity(), "ok");
}

TEST_F(RunStoreTest, summarises_finite_values_per_rank) {
  RunStore store = RunStore::open(path());
  for (int step = 0; step < 10; ++step) {
    write(
        store, "r",
        {MetricBatch{0, step, 1, {{"t", double(step)}}}, MetricBatch{3, step, 1, {{"t", step == 9 ? INFINITY : 5.0}}}});
  }
  const auto ranks = store.per_rank("r", "t", 2);
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0].points, 8);
  EXPECT_EQ(ranks[0].mean, 5.5);
  EXPECT_EQ(ranks[0].minimum, 2.0);
  EXPECT_EQ(ranks[0].maximum, 9.0);
  EXPECT_EQ(ranks[0].last, 9.0);
  EXPECT_EQ(ranks[1].rank, 3);
  EXPECT_EQ(ranks[1].mean, 5.0);
  EXPECT_EQ(ranks[1].maximum, 5.0);
  EXPECT_EQ(ranks[1].last, INFINITY);
}

TEST_F(RunStoreTest, thins_a_long_series_and_keeps_its_ends) {
  RunStore store = RunStore::open(path());
  std::vector<Record> records;
  for (int step = 0; step < 1003; ++step) records.push_back(MetricBatch{0, step, 1, {{"t", double(step)}}});
  store.write("r", records);
  const auto points = store.series("r", "t", 0, 100);
  ASSERT_EQ(points.size(), 100u);
  EXPECT_EQ(points.front().step, 0);
  EXPECT_EQ(points.back().step, 1002);
  for (std::size_t i = 1; i < points.size(); ++i) EXPECT_LE(points[i].step - points[i - 1].step, 12);
  EXPECT_EQ(store.series("r", "t").size(), 1003u);
  EXPECT_TRUE(store.series("r", "nothing").empty());
  EXPECT_TRUE(store.series("nobody", "t").empty());
}

TEST_F(RunStoreTest, keeps_the_last_value_of_a_step_that_was_repeated) {
  RunStore store = RunStore::open(path());
  write(store, "r", {MetricBatch{0, 5, 1, {{"loss", 1.0}}}});
  write(store, "r", {MetricBatch{0, 5, 2, {{"loss", 2.0}}}});
  ASSERT_EQ(store.series("r", "loss").size(), 1u);
  EXPECT_EQ(store.series("r", "loss")[0].value, 2.0);
}

TEST_F(RunStoreTest, fills_in_a_run_whose_ranks_came_first) {
  RunStore store = RunStore::open(path());
  write(store, "r", {MetricBatch{1, 1, 1, {{"loss", 1.0}}}});
  write(store, "r", {run_of_this_process("r", 50.0)});
  EXPECT_EQ(store.runs().size(), 1u);
  EXPECT_EQ(store.find("r")->info.name, "job");
  EXPECT_EQ(store.find("r")->info.started_at, 50.0);
}

TEST_F(RunStoreTest, finds_runs_by_last_and_by_the_beginning_of_the_id) {
  RunStore store = RunStore::open(path());
  EXPECT_FALSE(store.last());
  write(store, "aa1", {run_of_this_process("aa1", 300.0)});
  write(store, "aa2", {run_of_this_process("aa2", 100.0)});
  write(store, "aa", {run_of_this_process("aa", 200.0)});
  EXPECT_EQ(store.last()->info.id, "aa1");
  EXPECT_EQ(store.find("aa2")->info.id, "aa2");
  EXPECT_EQ(store.find("aa")->info.id, "aa");  // the whole id wins over its being a beginning
  EXPECT_THROW(store.find("a"), UserError);
  EXPECT_FALSE(store.find("b"));
  EXPECT_FALSE(store.find("%"));
  EXPECT_FALSE(store.find(""));
  EXPECT_EQ(store.runs(2).size(), 2u);
}

TEST_F(RunStoreTest, shows_a_running_run_as_lost_when_its_process_is_gone) {
  RunStore store = RunStore::open(path());
  RunInfo info = run_of_this_process("gone", 1.0);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  info.pid = child;
  info.pid_started = 0;
  write(store, "gone", {info});
  EXPECT_EQ(store.find("gone")->status, RunStatus::kLost);

  RunInfo reused = run_of_this_process("reused", 2.0);  // our pid, but of a process that started at another time
  reused.pid_started += 1;
  write(store, "reused", {reused});
  EXPECT_EQ(store.find("reused")->status, RunStatus::kLost);

  RunInfo elsewhere = info;
  elsewhere.id = "elsewhere";
  elsewhere.host = "another-host";
  write(store, "elsewhere", {elsewhere});
  EXPECT_EQ(store.find("elsewhere")->status, RunStatus::kRunning);
}

TEST_F(RunStoreTest, writes_a_batch_entirely_or_not_at_all) {
  RunStore store = RunStore::open(path());
  write(store, "r", {MetricBatch{0, 1, 1, {{"loss", 1.0}}}});
  raw_sql(path(), "CREATE TRIGGER t BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'no'); END");
  EXPECT_THROW(write(store, "s", {MetricBatch{0, 2, 1, {{"new_name", 2.0}}}, Event{1, Level::kInfo, "k"}}), UserError);
  EXPECT_EQ(store.runs().size(), 1u);
  // The names and runs that were rolled back are made again, not taken from memory.
  write(store, "s", {MetricBatch{0, 2, 1, {{"new_name", 2.0}}}});
  EXPECT_EQ(store.series("s", "new_name").size(), 1u);
}

TEST_F(RunStoreTest, brings_version_1_forward_with_all_its_data) {
  make_folders(path().parent_path());
  raw_sql(path(), kVersion1);
  RunStore store = RunStore::open(path());
  EXPECT_EQ(raw_value(path(), "PRAGMA user_version"), std::to_string(RunStore::kSchemaVersion));
  const auto run = store.find("old");
  ASSERT_TRUE(run);
  EXPECT_EQ(run->info.world, 2);
  EXPECT_EQ(run->info.pid_started, 0);
  EXPECT_EQ(store.series("old", "loss").size(), 2u);
  EXPECT_EQ(store.events("old").size(), 1u);
  write(store, "old", {Span{0, 1, "save", 1, 1}});
  EXPECT_EQ(store.spans("old").size(), 1u);
}

TEST_F(RunStoreTest, brings_version_2_forward_with_all_its_data) {
  make_folders(path().parent_path());
  raw_sql(path(), kVersion1);
  raw_sql(path(), kVersion1To2);
  const RunStore runs = RunStore::open(path());
  EXPECT_EQ(raw_value(path(), "PRAGMA user_version"), "3");
  EXPECT_EQ(runs.find("old")->info.pid_started, 77);
  EXPECT_EQ(runs.series("old", "loss").size(), 2u);
  EXPECT_EQ(runs.spans("old").at(0).total_seconds, 2.5);
  EXPECT_EQ(runs.integrity(), "ok");
  const auto studies = make_sqlite_study_store(path(), false);
  EXPECT_TRUE(studies->studies().empty());
  studies->create({.id = "s", .name = "new", .space_yaml = "knobs: {}"});
  EXPECT_EQ(studies->find("last")->info.name, "new");
}

TEST_F(RunStoreTest, a_version_2_store_that_two_processes_open_at_once_is_migrated_once) {
  make_folders(path().parent_path());
  raw_sql(path(), kVersion1);
  raw_sql(path(), kVersion1To2);
  std::vector<pid_t> children;
  for (int i = 0; i < 4; ++i) {
    children.push_back(::fork());
    if (children.back() != 0) continue;
    try {
      make_sqlite_study_store(path())->create({.id = "s" + std::to_string(i), .name = "n", .space_yaml = ""});
      ::_exit(0);
    } catch (...) {
      ::_exit(1);
    }
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(make_sqlite_study_store(path())->studies().size(), 4u);
}

TEST_F(RunStoreTest, leaves_the_store_at_its_version_when_a_migration_fails) {
  make_folders(path().parent_path());
  raw_sql(path(), kVersion1);
  raw_sql(path(), "CREATE TABLE spans (in_the_way INTEGER)");
  EXPECT_THROW(RunStore::open(path()), UserError);
  EXPECT_EQ(raw_value(path(), "PRAGMA user_version"), "1");
  EXPECT_EQ(raw_value(path(), "SELECT count(*) FROM pragma_table_info('runs') WHERE name = 'pid_started'"), "0");
}

void expect_refused_untouched(const std::filesystem::path& path, const std::string& part_of_message) {
  const std::string before = read_file(path);
  try {
    RunStore::open(path);
    ADD_FAILURE() << "opened";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_NE(std::string(error.what()).find(part_of_message), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
  }
  EXPECT_TRUE(read_file(path) == before);
}

TEST_F(RunStoreTest, refuses_a_store_of_a_newer_version) {
  make_folders(path().parent_path());
  raw_sql(path(), kVersion1);
  raw_sql(path(), "PRAGMA user_version = 99");
  expect_refused_untouched(path(), "newer lockstep (schema 99");
}

TEST_F(RunStoreTest, refuses_what_is_not_a_run_store) {
  const auto text = folder_.path() / "text.db", other = folder_.path() / "other.db";
  std::ofstream(text) << std::string(4096, 'x');
  expect_refused_untouched(text, "not a SQLite file");
  raw_sql(other, "CREATE TABLE bookmarks (url TEXT)");
  expect_refused_untouched(other, "belongs to another program");
}

TEST_F(RunStoreTest, says_so_when_there_is_no_store) {
  try {
    RunStore::open(path(), false);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
  }
  EXPECT_FALSE(std::filesystem::exists(path()));
}

TEST_F(RunStoreTest, imports_json_lines_and_adds_nothing_the_second_time) {
  const auto file = folder_.path() / "rank-00000.jsonl";
  {
    std::ofstream out(file);
    out << to_json_line("imported", run_of_this_process("imported", 5.0)) << "\n";
    out << to_json_line("imported", MetricBatch{0, 1, 6, {{"loss", NAN}, {"lr", 1.0}}}) << "\n\n";
    out << to_json_line("imported", Event{7, Level::kInfo, "k", 0, 1, "m"}) << "\n";
    out << to_json_line("imported", Span{0, 1, "save", 8, 1}) << "\n";
    out << R"({"run":"imported","type":"eve)";
  }
  RunStore store = RunStore::open(path());
  for (int round = 0; round < 2; ++round) {
    const auto result = store.import_json_lines(file);
    EXPECT_EQ(result.lines, 4);
    EXPECT_TRUE(result.torn_end);
    EXPECT_EQ(result.runs, (std::vector<std::string>{"imported"}));
    EXPECT_EQ(store.runs().size(), 1u);
    EXPECT_EQ(store.events("imported").size(), 1u);
    EXPECT_EQ(store.spans("imported").at(0).count, 1);
    EXPECT_TRUE(std::isnan(store.series("imported", "loss").at(0).value));
  }
}

TEST_F(RunStoreTest, imports_nothing_of_a_file_with_a_bad_line_and_names_the_line) {
  const auto file = folder_.path() / "bad.jsonl";
  std::ofstream(file) << to_json_line("x", Event{7, Level::kInfo, "k"}) << "\nnonsense\n";
  RunStore store = RunStore::open(path());
  try {
    store.import_json_lines(file);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("bad.jsonl:2"), std::string::npos) << error.what();
  }
  EXPECT_TRUE(store.runs().empty());
}

}  // namespace
}  // namespace lockstep::telemetry
