#include "lockstep/telemetry/run_store.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <fstream>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::telemetry {
namespace {

using nlohmann::json;

RunInfo run_of_this_process(const std::string& id, double started_at) {
  RunInfo info = describe_this_process({.id = id, .name = "job", .world = 2, .backend = "gloo", .job_yaml = "a: b"});
  info.started_at = started_at;
  return info;
}

void write(RunStore& store, const std::string& run, std::vector<Record> records) { store.write(run, records); }

// What every run store does.
enum class Kind { kSqlite, kJsonLines };

class RunStoreTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == Kind::kSqlite && !has_sqlite()) GTEST_SKIP() << "no SQLite in this build";
  }
  std::unique_ptr<RunStore> open() const {
    if (GetParam() == Kind::kSqlite) return make_sqlite_run_store(folder_.path() / "sub/runs.db");
    return make_json_lines_run_store(folder_.path());
  }
  TemporaryFolder folder_;
};

TEST_P(RunStoreTest, knows_the_last_step_that_was_recorded) {
  const auto store = open();
  EXPECT_FALSE(store->last_step("r1", "loss", 0));
  write(*store, "r1",
        {run_of_this_process("r1", 100.0), MetricBatch{0, 7, 101, {{"loss", 4.0}}},
         MetricBatch{0, 9, 102, {{"loss", 3.0}}}, MetricBatch{0, 8, 103, {{"loss", 3.5}}},
         MetricBatch{1, 12, 103, {{"loss", 3.5}}}});
  EXPECT_EQ(store->last_step("r1", "loss", 0), 9);
  EXPECT_EQ(store->last_step("r1", "loss", 1), 12);
  EXPECT_FALSE(store->last_step("r1", "loss", 2));
}

TEST_P(RunStoreTest, tells_events_of_a_kind_after_a_moment) {
  const auto store = open();
  write(*store, "r1",
        {run_of_this_process("r1", 100.0), Event{101, Level::kInfo, "tags", -1, -1, "first"},
         Event{102, Level::kInfo, "alert", 0, 7, "other"}, Event{103, Level::kInfo, "tags", -1, -1, "second"}});
  EXPECT_EQ(store->events_after("r1", 0).size(), 3u);
  EXPECT_EQ(store->events_after("r1", 103).size(), 0u);
  const auto tags = store->events_after("r1", 101, "tags");
  ASSERT_EQ(tags.size(), 1u);
  EXPECT_EQ(tags[0].message, "second");
  EXPECT_TRUE(store->events_after("other", 0).empty());
}

TEST_P(RunStoreTest, gives_back_what_was_written) {
  const auto store = open();
  const RunInfo info = run_of_this_process("r1", 100.0);
  write(*store, "r1",
        {info, PlanRecord{{{"best", 1}}}, MetricBatch{0, 1, 101.5, {{"loss", 4.0}, {"lr", 0.1}}},
         MetricBatch{1, 1, 101.25, {{"loss", NAN}}}, Event{103, Level::kWarning, "k", 1, 2, "message", {{"a", 1}}}});
  auto row = store->find("r1");
  ASSERT_TRUE(row);
  EXPECT_EQ(row->info.backend, "gloo");
  EXPECT_EQ(row->info.pid, ::getpid());
  EXPECT_EQ(row->status, RunStatus::kRunning);
  EXPECT_EQ(store->plan("r1"), (json{{"best", 1}}));
  EXPECT_EQ(store->ranks("r1", "loss"), (std::vector<int>{0, 1}));
  EXPECT_EQ(store->ranks("r1", "lr"), (std::vector<int>{0}));
  const auto loss = store->series("r1", "loss");
  ASSERT_EQ(loss.size(), 1u);
  EXPECT_EQ(loss[0].value, 4.0);
  EXPECT_EQ(loss[0].time, 101.5);
  EXPECT_TRUE(std::isnan(store->points("r1", "loss", 1).at(0).value));
  const auto events = store->events("r1");
  ASSERT_EQ(events.size(), 1u);
  EXPECT_EQ(events[0].data, (json{{"a", 1}}));
  EXPECT_TRUE(store->events("r1", Level::kError).empty());
  write(*store, "r1", {RunEnd{200, RunStatus::kFailed, "rank 1 died", {{"steps", 7}}}});
  row = store->find("r1");
  EXPECT_EQ(row->status, RunStatus::kFailed);
  EXPECT_EQ(row->ended_at, 200);
  EXPECT_EQ(row->exit_reason, "rank 1 died");
  EXPECT_EQ(row->summary.at("steps"), 7);
}

TEST_P(RunStoreTest, summarises_finite_values_per_rank) {
  const auto store = open();
  for (int step = 0; step < 10; ++step) {
    write(
        *store, "r",
        {MetricBatch{0, step, 1, {{"t", double(step)}}}, MetricBatch{3, step, 1, {{"t", step == 9 ? INFINITY : 5.0}}}});
  }
  const auto ranks = store->per_rank("r", "t", 2);
  ASSERT_EQ(ranks.size(), 2u);
  EXPECT_EQ(ranks[0].points, 8);
  EXPECT_EQ(ranks[0].mean, 5.5);
  EXPECT_EQ(ranks[0].maximum, 9.0);
  EXPECT_EQ(ranks[1].rank, 3);
  EXPECT_EQ(ranks[1].mean, 5.0);
  EXPECT_EQ(ranks[1].maximum, 5.0);
}

TEST_P(RunStoreTest, thins_a_long_series_and_keeps_its_ends) {
  const auto store = open();
  std::vector<Record> records;
  for (int step = 0; step < 1003; ++step) records.push_back(MetricBatch{0, step, 1, {{"t", double(step)}}});
  store->write("r", records);
  const auto points = store->series("r", "t", 100);
  ASSERT_EQ(points.size(), 100u);
  EXPECT_EQ(points.front().step, 0);
  EXPECT_EQ(points.back().step, 1002);
  for (std::size_t i = 1; i < points.size(); ++i) EXPECT_LE(points[i].step - points[i - 1].step, 12);
  EXPECT_EQ(store->series("r", "t").size(), 1003u);
  EXPECT_TRUE(store->series("r", "nothing").empty());
  EXPECT_TRUE(store->series("nobody", "t").empty());
}

TEST_P(RunStoreTest, keeps_the_last_value_of_a_step_that_was_repeated) {
  const auto store = open();
  write(*store, "r", {MetricBatch{0, 5, 1, {{"loss", 1.0}}}});
  write(*store, "r", {MetricBatch{0, 5, 2, {{"loss", 2.0}}}});
  ASSERT_EQ(store->series("r", "loss").size(), 1u);
  EXPECT_EQ(store->series("r", "loss")[0].value, 2.0);
}

TEST_P(RunStoreTest, fills_in_a_run_whose_ranks_came_first) {
  const auto store = open();
  write(*store, "r", {MetricBatch{1, 1, 1, {{"loss", 1.0}}}});
  write(*store, "r", {run_of_this_process("r", 50.0)});
  EXPECT_EQ(store->runs().size(), 1u);
  EXPECT_EQ(store->find("r")->info.name, "job");
  EXPECT_EQ(store->find("r")->info.started_at, 50.0);
}

TEST_P(RunStoreTest, goes_on_with_a_run_that_was_submitted_and_started_again) {
  const auto store = open();
  RunInfo submitted = run_of_this_process("r", 50.0);
  submitted.host = "slurm";
  submitted.pid = submitted.pid_started = 0;
  write(*store, "r", {submitted});
  EXPECT_EQ(store->find("r")->status, RunStatus::kRunning);  // queued: nobody's process is gone
  write(*store, "r",
        {run_of_this_process("r", 60.0), RunEnd{70.0, RunStatus::kInterrupted, "stopped", {{"steps", 1}}}});
  write(*store, "r", {submitted});  // a submitter that is late
  EXPECT_EQ(store->find("r")->status, RunStatus::kInterrupted);
  write(*store, "r", {run_of_this_process("r", 80.0)});
  EXPECT_EQ(store->find("r")->status, RunStatus::kRunning);
  EXPECT_EQ(store->find("r")->info.started_at, 60.0);
  EXPECT_EQ(store->find("r")->ended_at, 0.0);
  write(*store, "r", {RunEnd{90.0, RunStatus::kDone, "", {{"steps", 2}}}});
  EXPECT_EQ(store->find("r")->status, RunStatus::kDone);
  EXPECT_EQ(store->find("r")->summary.at("steps"), 2);
}

TEST_P(RunStoreTest, finds_runs_by_last_and_by_the_beginning_of_the_id) {
  const auto store = open();
  EXPECT_FALSE(store->find("last"));
  write(*store, "aa1", {run_of_this_process("aa1", 300.0)});
  write(*store, "aa2", {run_of_this_process("aa2", 100.0)});
  write(*store, "aa", {run_of_this_process("aa", 200.0)});
  EXPECT_EQ(store->find("last")->info.id, "aa1");
  EXPECT_EQ(store->find("aa2")->info.id, "aa2");
  EXPECT_EQ(store->find("aa")->info.id, "aa");  // the whole id wins over its being a beginning
  EXPECT_THROW(store->find("a"), UserError);
  EXPECT_FALSE(store->find("b"));
  EXPECT_FALSE(store->find("%"));
  EXPECT_FALSE(store->find(""));
  EXPECT_EQ(store->runs(2).size(), 2u);
}

TEST_P(RunStoreTest, shows_a_running_run_as_lost_when_its_process_is_gone) {
  const auto store = open();
  RunInfo info = run_of_this_process("gone", 1.0);
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  info.pid = child;
  info.pid_started = 0;
  write(*store, "gone", {info});
  EXPECT_EQ(store->find("gone")->status, RunStatus::kLost);

  RunInfo reused = run_of_this_process("reused", 2.0);  // our pid, but of a process that started at another time
  reused.pid_started += 1;
  write(*store, "reused", {reused});
  EXPECT_EQ(store->find("reused")->status, RunStatus::kLost);

  RunInfo elsewhere = info;
  elsewhere.id = "elsewhere";
  elsewhere.host = "another-host";
  write(*store, "elsewhere", {elsewhere});
  EXPECT_EQ(store->find("elsewhere")->status, RunStatus::kRunning);
}

TEST_P(RunStoreTest, keeps_the_tags_of_a_run) {
  const auto store = open();
  write(*store, "r", {run_of_this_process("r", 50.0)});
  write(*store, "s", {run_of_this_process("s", 60.0)});
  EXPECT_TRUE(store->find("r")->tags.empty());
  store->set_tags("r", {"good", "<b>bold</b>", "=1+1", "good", "müde"});
  EXPECT_EQ(store->find("r")->tags, (std::vector<std::string>{"<b>bold</b>", "=1+1", "good", "müde"}));
  EXPECT_TRUE(store->find("s")->tags.empty());
  EXPECT_EQ(open()->find("r")->tags.size(), 4u);
  store->set_tags("r", {});
  EXPECT_TRUE(store->find("r")->tags.empty());
}

TEST_P(RunStoreTest, refuses_what_is_no_tag_and_no_run) {
  const auto store = open();
  write(*store, "r", {run_of_this_process("r", 50.0)});
  store->set_tags("r", {"kept"});
  for (const std::string& bad : {std::string(), std::string(65, 'x'), std::string("a\x1b[31m"), std::string("a\nb"),
                                 std::string("a\0b", 3), std::string("\xff")}) {
    EXPECT_THROW(store->set_tags("r", {bad}), UserError) << bad;
  }
  std::vector<std::string> many;
  for (int i = 0; i < 33; ++i) many.push_back(std::to_string(i));
  EXPECT_THROW(store->set_tags("r", many), UserError);
  for (const char* nobody : {"nobody", "", "..", "../r", "r/../r"})
    EXPECT_THROW(store->set_tags(nobody, {"a"}), UserError);
  EXPECT_EQ(store->find("r")->tags, (std::vector<std::string>{"kept"}));
}

TEST_P(RunStoreTest, ids_that_lead_out_of_the_store_are_unknown_runs) {
  const auto store = open();
  write(*store, "r", {MetricBatch{0, 1, 1, {{"loss", 1.0}}}});
  for (const char* id : {"../runs/r", "r/.", "./r", "/", "..", "."}) {
    EXPECT_TRUE(store->points(id, "loss", 0).empty()) << id;
    EXPECT_TRUE(store->spans(id, 0, 10).empty()) << id;
    EXPECT_TRUE(store->events(id).empty()) << id;
  }
}

INSTANTIATE_TEST_SUITE_P(Stores, RunStoreTest, ::testing::Values(Kind::kSqlite, Kind::kJsonLines),
                         [](const auto& test) { return test.param == Kind::kSqlite ? "sqlite" : "json_lines"; });

TEST(RunFiles, of_all_writers_are_one_run) {
  const TemporaryFolder home;
  write(*make_json_lines_run_store(home.path(), -1), "r", {run_of_this_process("r", 5.0), PlanRecord{{{"best", 1}}}});
  for (int rank = 0; rank < 3; ++rank)
    write(*make_json_lines_run_store(home.path(), rank), "r", {MetricBatch{rank, 1, 6, {{"loss", 1.0 * rank}}}});
  write(*make_json_lines_run_store(home.path(), 0), "r", {MetricBatch{0, 2, 7, {{"loss", 9.0}}}});
  write(*make_json_lines_run_store(home.path(), -1), "r", {RunEnd{8, RunStatus::kDone, "", {}}});
  const auto store = make_json_lines_run_store(home.path());
  EXPECT_EQ(store->runs().size(), 1u);
  EXPECT_EQ(store->find("last")->status, RunStatus::kDone);
  EXPECT_EQ(store->ranks("r", "loss"), (std::vector<int>{0, 1, 2}));
  EXPECT_EQ(store->series("r", "loss").size(), 2u);
  EXPECT_EQ(store->plan("r"), (json{{"best", 1}}));
}

TEST(RunFiles, leave_a_line_out_that_a_kill_cut_short) {
  const TemporaryFolder home;
  write(*make_json_lines_run_store(home.path(), 0), "r", {MetricBatch{0, 1, 6, {{"loss", NAN}}}});
  const auto file = lines_file(home.path(), "r", 0);
  std::ofstream(file, std::ios::app) << R"({"run":"r","type":"metr)";
  EXPECT_TRUE(std::isnan(make_json_lines_run_store(home.path())->series("r", "loss").at(0).value));
  write(*make_json_lines_run_store(home.path(), 0), "r", {MetricBatch{0, 2, 7, {{"loss", 1.0}}}});
  EXPECT_EQ(make_json_lines_run_store(home.path())->series("r", "loss").size(), 2u) << "the next writer begins anew";
}

TEST(RunFiles, name_the_line_that_is_no_record_and_still_list_the_other_runs) {
  const TemporaryFolder home;
  for (const char* run : {"good", "bad"})
    write(*make_json_lines_run_store(home.path(), 0), run, {Event{7, Level::kInfo, "k"}});
  std::ofstream(lines_file(home.path(), "bad", 0), std::ios::app) << "nonsense\n";
  const auto store = make_json_lines_run_store(home.path());
  ASSERT_EQ(store->runs().size(), 1u);
  EXPECT_EQ(store->runs()[0].info.id, "good");
  try {
    store->events("bad");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("rank-00000.jsonl:2"), std::string::npos) << error.what();
  }
}

TEST(RunFiles, are_read_on_when_they_have_grown) {
  const TemporaryFolder home;
  const auto reader = make_json_lines_run_store(home.path()), writer = make_json_lines_run_store(home.path(), 0);
  for (int step = 1; step < 4; ++step) {
    write(*writer, "r", {MetricBatch{0, step, 6, {{"loss", 1.0}}}});
    EXPECT_EQ(reader->series("r", "loss").size(), std::size_t(step));
  }
  // Only what was appended is read: what came before may be gone without anybody noticing.
  const auto file = lines_file(home.path(), "r", 0);
  const auto before = std::filesystem::file_size(file);
  std::fstream(file, std::ios::in | std::ios::out | std::ios::binary) << std::string(before - 1, '?');
  write(*writer, "r", {MetricBatch{0, 2, 7, {{"loss", 2.0}}}, MetricBatch{0, 4, 8, {{"loss", 4.0}}}});
  const auto points = reader->points("r", "loss", 0);
  ASSERT_EQ(points.size(), 4u);
  EXPECT_EQ(points[1].value, 2.0) << "a step done again";
  EXPECT_THROW(make_json_lines_run_store(home.path())->points("r", "loss", 0), UserError);
}

TEST(RunFiles, that_were_replaced_by_shorter_ones_are_read_anew) {
  const TemporaryFolder home;
  const auto reader = make_json_lines_run_store(home.path());
  write(*make_json_lines_run_store(home.path(), 0), "r",
        {MetricBatch{0, 1, 6, {{"loss", 1.0}}}, MetricBatch{0, 2, 6, {{"loss", 1.0}}}});
  EXPECT_EQ(reader->points("r", "loss", 0).size(), 2u);
  std::filesystem::remove(lines_file(home.path(), "r", 0));
  write(*make_json_lines_run_store(home.path(), 0), "r", {MetricBatch{0, 9, 6, {{"loss", 1.0}}}});
  ASSERT_EQ(reader->points("r", "loss", 0).size(), 1u);
  EXPECT_EQ(reader->last_step("r", "loss", 0), 9);
}

TEST(RunFiles, hold_a_line_that_is_being_written_until_it_is_whole) {
  const TemporaryFolder home;
  const auto reader = make_json_lines_run_store(home.path());
  write(*make_json_lines_run_store(home.path(), 0), "r", {MetricBatch{0, 1, 6, {{"loss", 1.0}}}});
  const std::string line = to_json_line("r", MetricBatch{0, 2, 7, {{"loss", 2.0}}}) + "\n";
  std::ofstream file(lines_file(home.path(), "r", 0), std::ios::app);
  file << line.substr(0, 20) << std::flush;
  EXPECT_EQ(reader->points("r", "loss", 0).size(), 1u);
  file << line.substr(20) << std::flush;
  EXPECT_EQ(reader->points("r", "loss", 0).size(), 2u);
}

TEST(RunFiles, read_the_spans_that_the_owner_of_a_run_wrote) {
  const TemporaryFolder home;
  const auto owner = make_json_lines_run_store(home.path(), -1);
  const std::vector<Span> spans(3, {.kind = SpanKind::kForward, .seconds = 0.001F});
  write(*owner, "r",
        {run_of_this_process("r", 5.0), SpanBatch{-1, 4, 1.0, nullptr, spans}, SpanBatch{2, 4, 1.0, nullptr, spans},
         SpanBatch{-1, 5, 2.0, nullptr, spans}});
  ASSERT_TRUE(std::filesystem::exists(spans_file(home.path(), "r", -1)));
  const auto reader = make_json_lines_run_store(home.path());
  EXPECT_EQ(reader->span_steps("r"), (std::vector<std::int64_t>{4, 5}));
  const auto batches = reader->spans("r", 4, 5);
  ASSERT_EQ(batches.size(), 3u);
  EXPECT_EQ(batches[0].rank, -1);
  EXPECT_EQ(batches[0].spans.size(), 3u);
  EXPECT_EQ(reader->spans("r", 4, 5, 2).size(), 1u);
}

TEST(RunFiles, thin_spans_and_keep_metrics) {
  const TemporaryFolder home;
  const auto reader = make_json_lines_run_store(home.path());
  auto writer = make_json_lines_run_store(home.path(), 7);
  RunInfo info = run_of_this_process("r", 5.0);
  info.world = 128;  // half a MiB for each
  write(*writer, "r", {info});
  SpanBatch batch{7, 0, 1.0, nullptr, std::vector<Span>(40, {.kind = SpanKind::kForward, .seconds = 0.001F})};
  for (batch.step = 1; batch.step <= 1200; ++batch.step) {
    write(*writer, "r", {batch, MetricBatch{7, batch.step, 1.0, {{"step_seconds", 1.0}}}});
    if (batch.step % 200 == 0) {
      EXPECT_EQ(reader->span_steps("r").back(), batch.step);
    }
  }
  EXPECT_LT(std::filesystem::file_size(spans_file(home.path(), "r", 7)), 600u << 10);
  EXPECT_EQ(reader->points("r", "step_seconds", 7).size(), 1200u);
  const auto steps = reader->span_steps("r", 7);
  EXPECT_EQ(steps.front(), 1);
  EXPECT_LT(steps.size(), 500u);
  ASSERT_EQ(reader->spans("r", 1000, 1000).size(), 1u);
  EXPECT_EQ(reader->spans("r", 1000, 1000)[0].spans.size(), 40u);
}

}  // namespace
}  // namespace lockstep::telemetry
