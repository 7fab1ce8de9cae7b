// Runs in SQLite: transactions, versions of the schema, and files that are not ours.
#include <gtest/gtest.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/telemetry/run_store.h"
#include "lockstep/telemetry/study_store.h"

namespace lockstep::telemetry {
namespace {

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

class RunTables : public ::testing::Test {
 protected:
  std::filesystem::path path() const { return folder_.path() / "sub/runs.db"; }
  void write(RunStore& store, const std::string& run, std::vector<Record> records) { store.write(run, records); }
  TemporaryFolder folder_;
};

TEST_F(RunTables, writes_a_batch_entirely_or_not_at_all) {
  const auto store = make_sqlite_run_store(path());
  write(*store, "r", {MetricBatch{0, 1, 1, {{"loss", 1.0}}}});
  raw_sql(path(), "CREATE TRIGGER t BEFORE INSERT ON events BEGIN SELECT RAISE(ABORT, 'no'); END");
  EXPECT_THROW(write(*store, "s", {MetricBatch{0, 2, 1, {{"new_name", 2.0}}}, Event{1, Level::kInfo, "k"}}), UserError);
  EXPECT_EQ(store->runs().size(), 1u);
  // The names and runs that were rolled back are made again, not taken from memory.
  write(*store, "s", {MetricBatch{0, 2, 1, {{"new_name", 2.0}}}});
  EXPECT_EQ(store->series("s", "new_name").size(), 1u);
}

TEST_F(RunTables, brings_version_1_forward_with_all_its_data) {
  make_folders(path().parent_path());
  raw_sql(path(), kVersion1);
  const auto store = make_sqlite_run_store(path());
  EXPECT_EQ(raw_value(path(), "PRAGMA user_version"), std::to_string(kSchemaVersion));
  const auto run = store->find("old");
  ASSERT_TRUE(run);
  EXPECT_EQ(run->info.world, 2);
  EXPECT_EQ(run->info.pid_started, 0);
  EXPECT_EQ(store->series("old", "loss").size(), 2u);
  EXPECT_EQ(store->events("old").size(), 1u);
}

TEST_F(RunTables, brings_version_2_forward_with_all_its_data) {
  make_folders(path().parent_path());
  raw_sql(path(), kVersion1);
  raw_sql(path(), kVersion1To2);
  const auto runs = make_sqlite_run_store(path());
  EXPECT_EQ(raw_value(path(), "PRAGMA user_version"), std::to_string(kSchemaVersion));
  EXPECT_EQ(runs->find("old")->info.pid_started, 77);
  EXPECT_EQ(runs->series("old", "loss").size(), 2u);
  EXPECT_TRUE(runs->span_steps("old").empty()) << "those of version 2 were never written";
  EXPECT_EQ(raw_value(path(), "SELECT count(*) FROM sqlite_master WHERE name = 'metrics'"), "0");
  EXPECT_EQ(raw_value(path(), "PRAGMA integrity_check"), "ok");
  const auto studies = make_sqlite_study_store(path(), false);
  EXPECT_TRUE(studies->studies().empty());
  studies->create({.id = "s", .name = "new", .space_yaml = "knobs: {}"});
  EXPECT_EQ(studies->find("last")->info.name, "new");
}

TEST_F(RunTables, a_version_2_store_that_two_processes_open_at_once_is_migrated_once) {
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

TEST_F(RunTables, leaves_the_store_at_its_version_when_a_migration_fails) {
  make_folders(path().parent_path());
  raw_sql(path(), kVersion1);
  raw_sql(path(), "CREATE TABLE spans (in_the_way INTEGER)");
  EXPECT_THROW(make_sqlite_run_store(path()), UserError);
  EXPECT_EQ(raw_value(path(), "PRAGMA user_version"), "1");
  EXPECT_EQ(raw_value(path(), "SELECT count(*) FROM pragma_table_info('runs') WHERE name = 'pid_started'"), "0");
}

void expect_refused_untouched(const std::filesystem::path& path, const std::string& part_of_message) {
  const std::string before = read_file(path);
  try {
    make_sqlite_run_store(path);
    ADD_FAILURE() << "opened";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_NE(std::string(error.what()).find(part_of_message), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(path.string()), std::string::npos) << error.what();
  }
  EXPECT_TRUE(read_file(path) == before);
}

TEST_F(RunTables, refuses_a_store_of_a_newer_version) {
  make_folders(path().parent_path());
  raw_sql(path(), kVersion1);
  raw_sql(path(), "PRAGMA user_version = 99");
  expect_refused_untouched(path(), "newer lockstep (schema 99");
}

TEST_F(RunTables, refuses_what_is_not_a_run_store) {
  const auto text = folder_.path() / "text.db", other = folder_.path() / "other.db";
  std::ofstream(text) << std::string(4096, 'x');
  expect_refused_untouched(text, "not a SQLite file");
  raw_sql(other, "CREATE TABLE bookmarks (url TEXT)");
  expect_refused_untouched(other, "belongs to another program");
}

TEST_F(RunTables, says_so_when_there_is_no_store) {
  try {
    make_sqlite_run_store(path(), false);
    FAIL();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
  }
  EXPECT_FALSE(std::filesystem::exists(path()));
}

}  // namespace
}  // namespace lockstep::telemetry
