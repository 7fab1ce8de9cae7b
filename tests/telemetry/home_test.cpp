// One home with tables and JSON lines: runs that are recorded in both, and tables that cannot be written.
#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <algorithm>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::telemetry {
namespace {

RunInfo run_called(const std::string& id, double started_at) {
  RunInfo info = describe_this_process({.id = id, .name = "job", .world = 2});
  info.started_at = started_at;
  return info;
}

void write(RunStore& store, const std::string& run, std::vector<Record> records) { store.write(run, records); }

class Home : public ::testing::Test {
 protected:
  std::unique_ptr<RunStore> tables() const { return make_sqlite_run_store(store_file(home_.path())); }
  std::unique_ptr<RunStore> lines(int rank) const { return make_json_lines_run_store(home_.path(), rank); }
  std::unique_ptr<RunStore> open() const { return open_run_store(home_.path()); }
  TemporaryFolder home_;
};

TEST_F(Home, without_any_record_is_an_empty_store) {
  EXPECT_TRUE(open()->runs().empty());
  EXPECT_FALSE(open()->find("last"));
}

TEST_F(Home, lists_runs_of_both_kinds_newest_first) {
  write(*tables(), "a", {run_called("a", 1)});
  write(*lines(-1), "b", {run_called("b", 2)});
  write(*tables(), "c", {run_called("c", 3)});
  std::vector<std::string> ids;
  for (const RunRow& row : open()->runs()) ids.push_back(row.info.id);
  EXPECT_EQ(ids, (std::vector<std::string>{"c", "b", "a"}));
  EXPECT_EQ(open()->runs(2).size(), 2u);
  EXPECT_EQ(open()->find("b")->info.id, "b");
  EXPECT_EQ(open()->find("last")->info.id, "c");
}

TEST_F(Home, joins_a_run_whose_ranks_wrote_here_and_there) {
  write(*tables(), "r", {run_called("r", 1), MetricBatch{0, 1, 5, {{"loss", 1.0}}}, Event{6, Level::kInfo, "k", 0}});
  write(*lines(1), "r", {MetricBatch{1, 1, 5, {{"loss", 3.0}}}, Event{4, Level::kInfo, "k", 1}});
  EXPECT_EQ(open()->runs().size(), 1u);
  EXPECT_EQ(open()->ranks("r", "loss"), (std::vector<int>{0, 1}));
  EXPECT_EQ(open()->points("r", "loss", 1).at(0).value, 3.0);
  EXPECT_EQ(open()->events("r").at(0).rank, 1);
  EXPECT_EQ(open()->events("r").size(), 2u);
}

TEST_F(Home, lines_do_not_bring_an_old_run_before_the_newest) {
  write(*tables(), "old", {run_called("old", 1)});
  write(*lines(1), "old", {MetricBatch{1, 1, 50, {{"loss", 3.0}}}});
  write(*tables(), "new", {run_called("new", 2)});
  EXPECT_EQ(open()->find("last")->info.id, "new");
}

TEST_F(Home, takes_the_end_of_a_run_from_the_lines_when_the_tables_lack_it) {
  write(*tables(), "r", {run_called("r", 1), MetricBatch{0, 1, 5, {{"loss", 1.0}}}});
  write(*lines(-1), "r", {MetricBatch{0, 2, 6, {{"loss", 0.5}}}, RunEnd{9, RunStatus::kDone, "", {{"steps", 2}}}});
  const auto row = open()->find("r");
  EXPECT_EQ(row->status, RunStatus::kDone);
  EXPECT_EQ(row->summary.at("steps"), 2);
  EXPECT_EQ(open()->series("r", "loss").size(), 2u);
}

TEST_F(Home, charts_a_run_that_went_on_in_lines) {
  std::vector<Record> first{run_called("r", 1)}, second;
  for (int step = 1; step <= 3000; ++step) {
    auto& part = step <= 2000 ? first : second;
    part.emplace_back(MetricBatch{0, step, 1.0 * step, {{"loss", 1.0 * step}}});
  }
  tables()->write("r", first);
  lines(0)->write("r", second);
  const auto store = open();
  EXPECT_EQ(store->last_step("r", "loss", 0), 3000);
  EXPECT_EQ(store->points_after("r", "loss", 0, 1990, 20).back().step, 2010);
  EXPECT_EQ(store->points_after("r", "loss", 0, 2995).size(), 5u);
  const auto buckets = store->buckets("r", "loss", 0, 1, 3000, 7);
  std::int64_t counted = 0;
  for (const Bucket& bucket : buckets) counted += bucket.points;
  EXPECT_EQ(counted, 3000);
  EXPECT_LE(buckets.size(), 7u);
  EXPECT_EQ(buckets.front().minimum, 1.0);
  EXPECT_EQ(buckets.back().maximum, 3000.0);
  EXPECT_EQ(store->per_rank("r", "loss").at(0).points, 3000);
  // A recovery goes back into what the tables have: the later value counts, in points and in charts.
  std::vector<Record> again;
  for (int step = 1900; step <= 2100; ++step) again.emplace_back(MetricBatch{0, step, 4000.0, {{"loss", -1.0}}});
  lines(0)->write("r", again);
  EXPECT_EQ(store->points_after("r", "loss", 0, 1899, 1).at(0).value, -1.0);
  EXPECT_EQ(store->buckets("r", "loss", 0, 1900, 1999, 1).at(0).maximum, -1.0);
  EXPECT_EQ(store->points("r", "loss", 0).size(), 3000u);
}

TEST_F(Home, tags_runs_where_they_are) {
  write(*tables(), "a", {run_called("a", 1)});
  write(*lines(-1), "b", {run_called("b", 2)});
  open()->set_tags("a", {"x"});
  open()->set_tags("b", {"y"});
  EXPECT_EQ(open()->find("a")->tags, (std::vector<std::string>{"x"}));
  EXPECT_EQ(open()->find("b")->tags, (std::vector<std::string>{"y"}));
  EXPECT_THROW(open()->set_tags("c", {"z"}), UserError);
}

TEST_F(Home, shows_the_lines_when_the_tables_are_damaged) {
  std::ofstream(store_file(home_.path())) << std::string(4096, 'x');
  EXPECT_THROW(open(), UserError) << "there is nothing else";
  write(*lines(0), "r", {run_called("r", 1)});
  ::testing::internal::CaptureStderr();
  EXPECT_EQ(open()->find("last")->info.id, "r");
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("only runs recorded as JSON lines"), std::string::npos);
}

// Records a run with what `home` gives; returns what was said on stderr.
std::string record_a_run(const std::filesystem::path& home) {
  ::testing::internal::CaptureStderr();
  {
    auto recorder = open_recorder(home, "r", -1);
    recorder->begin_run(run_called("r", 1));
    for (int step = 1; step <= 100; ++step) recorder->metrics(0, step, {{"loss", 1.0 / step}, {"step_seconds", 0.1}});
    recorder->end_run(RunStatus::kDone, "", nlohmann::json::object());
    EXPECT_TRUE(recorder->flush(60.0));
  }
  return ::testing::internal::GetCapturedStderr();
}

void expect_recorded_with_one_warning(const std::filesystem::path& home, const std::string& said) {
  EXPECT_EQ(std::count(said.begin(), said.end(), '\n'), 1) << said;
  EXPECT_NE(said.find("run.jsonl"), std::string::npos) << said;
  const auto store = open_run_store(home);
  ASSERT_TRUE(store->find("r"));
  EXPECT_EQ(store->find("r")->status, RunStatus::kDone);
  EXPECT_EQ(store->series("r", "loss").size(), 100u);
}

TEST_F(Home, whose_tables_stay_locked_records_as_json_lines_and_says_so_once) {
  tables();
  sqlite3* locker = nullptr;
  ASSERT_EQ(sqlite3_open(store_file(home_.path()).c_str(), &locker), SQLITE_OK);
  ASSERT_EQ(sqlite3_exec(locker, "BEGIN EXCLUSIVE", nullptr, nullptr, nullptr), SQLITE_OK);
  EXPECT_NO_THROW(check_home(home_.path()));
  const std::string said = record_a_run(home_.path());
  EXPECT_NE(said.find("locked"), std::string::npos) << said;
  ASSERT_EQ(sqlite3_exec(locker, "COMMIT", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(locker);
  expect_recorded_with_one_warning(home_.path(), said);
}

TEST_F(Home, whose_disk_has_no_room_for_the_tables_records_as_json_lines_and_says_so_once) {
  tables();
  const pid_t child = ::fork();  // the limit holds for the whole process
  if (child == 0) {
    // The lines of this run take less than that, pages and journal of the tables more.
    const rlimit room{20'000, 20'000};
    ::signal(SIGXFSZ, SIG_IGN);
    ::setrlimit(RLIMIT_FSIZE, &room);
    expect_recorded_with_one_warning(home_.path(), record_a_run(home_.path()));
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST_F(Home, that_is_no_store_of_ours_is_refused_before_a_run) {
  std::ofstream(store_file(home_.path())) << std::string(4096, 'x');
  EXPECT_THROW(check_home(home_.path()), UserError);
  EXPECT_THROW(check_home("/proc/nowhere"), UserError);
}

}  // namespace
}  // namespace lockstep::telemetry
