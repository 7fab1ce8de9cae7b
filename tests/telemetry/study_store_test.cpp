// Both study stores, held to the same contract.
#include "lockstep/telemetry/study_store.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/telemetry/run_store.h"
#include "lockstep/telemetry/study_lines.h"

namespace lockstep::telemetry {
namespace {

using nlohmann::json;

enum class Kind { kSqlite, kJsonLines };

class StudyStoreTest : public ::testing::TestWithParam<Kind> {
 protected:
  void SetUp() override {
    if (GetParam() == Kind::kSqlite && !has_sqlite()) GTEST_SKIP() << "no SQLite in this build";
  }
  std::unique_ptr<StudyStore> open() const {
    if (GetParam() == Kind::kSqlite) return make_sqlite_study_store(folder_.path() / "runs.db");
    return make_json_lines_study_store(folder_.path() / "studies");
  }
  // Ends as the child's signal or exit code says; -signal when it was killed.
  static int in_child(const std::function<void()>& body) {
    const pid_t child = ::fork();
    if (child == 0) {
      try {
        body();
      } catch (const std::exception& error) {
        ::fprintf(stderr, "child: %s\n", error.what());
        ::_exit(1);
      }
      ::_exit(0);
    }
    int status = 0;
    ::waitpid(child, &status, 0);
    return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
  }
  TemporaryFolder folder_;
};

StudyInfo study_called(const std::string& id, double created_at = 100) {
  return {.id = id,
          .name = "job",
          .created_at = created_at,
          .space_yaml = "knobs:\n  a: {int: [0, 3]}\n",
          .options = {{"strategy", {{"seed", 7}}}},
          .versions = {{"lockstep", "0.1"}}};
}

AttemptRow trial_of(std::int64_t number, const std::string& outcome = "", double throughput = 0) {
  AttemptRow row;
  row.number = number;
  row.started_at = 1000.0 + double(number);
  row.purpose = "explore";
  row.outcome = outcome;
  row.throughput = throughput;
  row.document = {{"trial", number}, {"config", {{"a", number % 4}}}};
  return row;
}

AttemptRow ended(std::int64_t number, double throughput) {
  AttemptRow row = trial_of(number, throughput > 0 ? "measured" : "oom", throughput);
  row.seconds = 10;
  row.gpu_seconds = 40;
  return row;
}

void expect_exit(ExitCode code, const std::string& part, const std::function<void()>& body) {
  try {
    body();
    ADD_FAILURE() << "nothing was thrown";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST_P(StudyStoreTest, gives_back_what_was_written) {
  const auto store = open();
  EXPECT_EQ(store->create(study_called("s")), "s");
  EXPECT_EQ(store->begin_trial("s", trial_of(0)), 0);
  store->end_trial("s", ended(0, 120.5));
  store->begin_trial("s", trial_of(1));
  store->end_trial("s", ended(1, 0));
  store->begin_trial("s", trial_of(2));
  store->alive("s", 2, 1.5, 6);

  const auto row = open()->find("s");
  ASSERT_TRUE(row);
  EXPECT_EQ(row->status, RunStatus::kRunning);
  EXPECT_EQ(row->info.name, "job");
  EXPECT_EQ(row->info.pid, ::getpid());
  EXPECT_EQ(row->info.space_yaml, study_called("").space_yaml);
  EXPECT_EQ(row->info.options, study_called("").options);
  EXPECT_EQ(row->info.versions, study_called("").versions);
  EXPECT_TRUE(row->conclusion.is_null());
  EXPECT_EQ(row->trials, 2);
  EXPECT_EQ(row->failed, 1);
  EXPECT_DOUBLE_EQ(row->gpu_seconds, 86);

  const auto attempts = open()->attempts("s");
  ASSERT_EQ(attempts.size(), 3u);
  EXPECT_EQ(attempts[0].state, AttemptState::kEnded);
  EXPECT_EQ(attempts[0].throughput, 120.5);
  EXPECT_EQ(attempts[0].started_at, 1000);
  EXPECT_EQ(attempts[0].document, trial_of(0).document);
  EXPECT_EQ(attempts[1].outcome, "oom");
  EXPECT_EQ(attempts[2].state, AttemptState::kRunning);
  EXPECT_EQ(attempts[2].seconds, 1.5);
  EXPECT_EQ(attempts[2].gpu_seconds, 6);
  EXPECT_EQ(attempts[2].outcome, "");
}

TEST_P(StudyStoreTest, makes_an_id_that_sorts_by_time_when_none_is_given) {
  const auto store = open();
  const std::string id = store->create({.name = "my job", .space_yaml = "knobs: {}"});
  EXPECT_NE(id.find("-my-job"), std::string::npos);
  EXPECT_GT(store->find(id)->info.created_at, 1.7e9);
}

TEST_P(StudyStoreTest, finds_studies_by_last_and_by_the_beginning_of_the_id) {
  const auto store = open();
  EXPECT_FALSE(store->find("last"));
  EXPECT_TRUE(store->studies().empty());
  store->create(study_called("aa1", 300));
  store->create(study_called("aa2", 100));
  store->create(study_called("aa", 200));
  EXPECT_EQ(store->find("last")->info.id, "aa1");
  EXPECT_EQ(store->find("aa")->info.id, "aa");  // the whole id wins over its being a beginning
  EXPECT_EQ(store->find("aa2")->info.id, "aa2");
  expect_exit(ExitCode::kUsage, "several studies", [&] { store->find("a"); });
  EXPECT_FALSE(store->find("b"));
  EXPECT_FALSE(store->find(""));
  EXPECT_FALSE(store->find("%"));
  EXPECT_TRUE(store->attempts("nobody").empty());
  ASSERT_EQ(store->studies(2).size(), 2u);
  EXPECT_EQ(store->studies(2)[1].info.id, "aa");
  expect_exit(ExitCode::kUsage, "already", [&] { store->create(study_called("aa")); });
}

TEST_P(StudyStoreTest, keeps_what_was_found_when_a_study_is_released) {
  const auto store = open();
  store->create(study_called("s"));
  store->begin_trial("s", trial_of(0));
  store->release("s", RunStatus::kDone, {{"best", 3}});
  EXPECT_EQ(store->find("s")->status, RunStatus::kDone);
  EXPECT_GT(store->find("s")->ended_at, 0);
  EXPECT_EQ(store->find("s")->conclusion, (json{{"best", 3}}));
  EXPECT_EQ(store->attempts("s").at(0).state, AttemptState::kInterrupted);

  store->acquire("s");
  EXPECT_EQ(store->find("s")->status, RunStatus::kRunning);
  EXPECT_EQ(store->find("s")->ended_at, 0);
  store->set_options("s", {{"strategy", {{"trials", 99}}}});
  store->release("s", RunStatus::kInterrupted, nullptr);
  EXPECT_EQ(store->find("s")->status, RunStatus::kInterrupted);
  EXPECT_EQ(store->find("s")->conclusion, (json{{"best", 3}})) << "null keeps the conclusion there is";
  EXPECT_EQ(store->find("s")->info.options["strategy"]["trials"], 99);
}

TEST_P(StudyStoreTest, an_attempt_that_a_kill_cut_off_keeps_its_time_and_the_trial_begins_anew) {
  const int end = in_child([&] {
    const auto store = open();
    store->create(study_called("s"));
    store->begin_trial("s", trial_of(0));
    store->end_trial("s", ended(0, 100));
    store->begin_trial("s", trial_of(1));
    store->alive("s", 1, 2.5, 10);
    ::kill(::getpid(), SIGKILL);
  });
  ASSERT_EQ(end, -SIGKILL);

  const auto store = open();
  ASSERT_TRUE(store->find("s"));
  EXPECT_EQ(store->find("s")->status, RunStatus::kLost);
  store->acquire("s");
  EXPECT_EQ(store->find("s")->status, RunStatus::kRunning);
  EXPECT_EQ(store->find("s")->info.pid, ::getpid());
  EXPECT_EQ(store->begin_trial("s", trial_of(1)), 1);
  store->end_trial("s", ended(1, 200));

  const auto attempts = store->attempts("s");
  ASSERT_EQ(attempts.size(), 3u);
  EXPECT_EQ(attempts[1].state, AttemptState::kInterrupted);
  EXPECT_EQ(attempts[1].seconds, 2.5);
  EXPECT_EQ(attempts[1].gpu_seconds, 10);
  EXPECT_EQ(attempts[2].attempt, 1);
  EXPECT_EQ(attempts[2].throughput, 200);
  EXPECT_EQ(store->find("s")->trials, 2);
  EXPECT_DOUBLE_EQ(store->find("s")->gpu_seconds, 40 + 10 + 40);
}

TEST_P(StudyStoreTest, no_ended_trial_is_lost_whenever_the_owner_is_killed) {
  // The child says how many trials it has ended before it begins the next; the store must have at least that many.
  int pipes[2];
  ASSERT_EQ(::pipe(pipes), 0);
  std::int64_t before = 0;
  for (int round = 0; round < 8; ++round) {
    const pid_t child = ::fork();
    if (child == 0) {
      const auto store = open();
      round == 0 ? void(store->create(study_called("s"))) : store->acquire("s");
      for (std::int64_t number = before;; ++number) {
        store->begin_trial("s", trial_of(number));
        store->alive("s", number, 1, 1);
        store->end_trial("s", ended(number, 1));
        if (::write(pipes[1], &number, sizeof(number)) != sizeof(number)) ::_exit(1);
      }
    }
    std::int64_t last = -1;
    for (int i = 0; i <= round * 3; ++i) ASSERT_EQ(::read(pipes[0], &last, sizeof(last)), ssize_t(sizeof(last)));
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    std::int64_t count = 0;
    for (const AttemptRow& attempt : open()->attempts("s")) count += attempt.state == AttemptState::kEnded;
    ASSERT_GT(count, last) << "after kill " << round;
    before = count;
    ::close(pipes[0]);
    ::close(pipes[1]);
    ASSERT_EQ(::pipe(pipes), 0);
  }
  ::close(pipes[0]);
  ::close(pipes[1]);
}

TEST_P(StudyStoreTest, two_processes_cannot_run_the_same_study) {
  int ready[2], go[2];
  ASSERT_EQ(::pipe(ready), 0);
  ASSERT_EQ(::pipe(go), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    char byte = 0;
    const auto store = open();
    store->create(study_called("s"));
    store->begin_trial("s", trial_of(0));
    const bool told = ::write(ready[1], &byte, 1) == 1 && ::read(go[0], &byte, 1) == 1;
    ::_exit(told ? 0 : 1);  // without release: as a crash would
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const auto store = open();
  expect_exit(ExitCode::kRetry, "is being run by process " + std::to_string(child), [&] { store->acquire("s"); });
  expect_exit(ExitCode::kRetry, "is being run", [&] { store->acquire("s", true); });  // it is here, and it lives
  expect_exit(ExitCode::kRetry, "another process", [&] { store->end_trial("s", ended(0, 1)); });
  EXPECT_EQ(store->attempts("s").at(0).state, AttemptState::kRunning) << "a refused acquire changes nothing";
  ASSERT_EQ(::write(go[1], &byte, 1), 1);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  store->acquire("s");
  EXPECT_EQ(store->attempts("s").at(0).state, AttemptState::kInterrupted);
  for (const int fd : {ready[0], ready[1], go[0], go[1]}) ::close(fd);
}

TEST_P(StudyStoreTest, this_process_cannot_run_it_twice_either) {
  const auto first = open(), second = open();
  first->create(study_called("s"));
  expect_exit(ExitCode::kRetry, "end it first", [&] { second->acquire("s"); });
  first->release("s", RunStatus::kInterrupted, nullptr);
  second->acquire("s");
  expect_exit(ExitCode::kRetry, "another process", [&] { first->begin_trial("s", trial_of(0)); });
  expect_exit(ExitCode::kUsage, "no study", [&] { second->acquire("nobody"); });
}

TEST_P(StudyStoreTest, refuses_the_end_of_a_trial_that_did_not_begin) {
  const auto store = open();
  store->create(study_called("s"));
  expect_exit(ExitCode::kUsage, "not under way", [&] { store->end_trial("s", ended(4, 1)); });
  expect_exit(ExitCode::kUsage, "not under way", [&] { store->alive("s", 4, 1, 1); });
  EXPECT_TRUE(store->attempts("s").empty());
}

TEST_P(StudyStoreTest, is_continued_where_it_was_begun) {
  open()->create(study_called("mine"));
  const auto home = open_study_store(folder_.path());
  home->create(study_called("new", 200));
  EXPECT_EQ(home->find("last")->info.id, "new");
  EXPECT_EQ(home->studies().size(), 2u) << "tables and lines are one list";
  in_child([&] {
    const auto store = open();
    store->create(study_called("lost", 50));
    store->begin_trial("lost", trial_of(0));
    ::kill(::getpid(), SIGKILL);
  });
  home->acquire("lost");
  EXPECT_EQ(home->begin_trial("lost", trial_of(0)), 1);
  home->end_trial("lost", ended(0, 55));
  home->release("lost", RunStatus::kDone, {{"best", 1}});
  EXPECT_EQ(open()->find("lost")->conclusion, (json{{"best", 1}})) << "where it was begun";
  EXPECT_EQ(home->attempts("lost").size(), 2u);
}

INSTANTIATE_TEST_SUITE_P(Stores, StudyStoreTest, ::testing::Values(Kind::kSqlite, Kind::kJsonLines),
                         [](const auto& test) { return test.param == Kind::kSqlite ? "sqlite" : "json_lines"; });

TEST(StudyFiles, are_taken_over_from_another_host_only_when_told_to) {
  const TemporaryFolder folder;
  {
    const auto store = make_json_lines_study_store(folder.path());
    store->create(study_called("s"));
    AttemptRow running = trial_of(0);
    running.gpu_seconds = 5;
    store->begin_trial("s", running);
  }
  const auto path = folder.path() / "s.jsonl";
  std::string text = read_file(path);
  const std::string mine = "\"host\":\"" + read_study_file(path).study.info.host;
  write_file_atomically(path, text.replace(text.find(mine), mine.size(), "\"host\":\"another-host"));
  const auto store = make_json_lines_study_store(folder.path());
  EXPECT_EQ(store->find("s")->status, RunStatus::kRunning);
  expect_exit(ExitCode::kRetry, "another-host", [&] { store->acquire("s"); });
  store->acquire("s", true);
  EXPECT_EQ(store->attempts("s").at(0).state, AttemptState::kInterrupted);
  EXPECT_EQ(store->find("s")->gpu_seconds, 5);
}

TEST(StudyFiles, a_line_that_was_cut_short_is_left_out_and_does_not_spoil_the_next) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "s.jsonl";
  {
    const auto store = make_json_lines_study_store(folder.path());
    store->create(study_called("s"));
    store->begin_trial("s", trial_of(0));
    store->end_trial("s", ended(0, 1));
    store->release("s", RunStatus::kInterrupted, nullptr);
  }
  std::ofstream(path, std::ios::app) << R"({"type":"attempt","trial":1,"sta)";
  EXPECT_TRUE(read_study_file(path).torn_end);
  EXPECT_EQ(read_study_file(path).study.trials, 1);
  const auto store = make_json_lines_study_store(folder.path());
  store->acquire("s");
  store->begin_trial("s", trial_of(1));
  store->end_trial("s", ended(1, 2));
  EXPECT_FALSE(read_study_file(path).torn_end);
  EXPECT_EQ(read_study_file(path).study.trials, 2);
}

TEST(StudyFiles, names_the_line_that_is_none_of_a_study) {
  const TemporaryFolder folder;
  const auto path = folder.path() / "s.jsonl";
  {
    const auto store = make_json_lines_study_store(folder.path());
    store->create(study_called("s"));
    store->create(study_called("good"));
    store->release("s", RunStatus::kInterrupted, nullptr);
    store->release("good", RunStatus::kInterrupted, nullptr);
  }
  for (const char* bad :
       {"nonsense", R"({"type":"lunch"})", R"({"type":"alive","trial":3,"seconds":1,"gpu_seconds":1})", R"([1])",
        R"({"type":"release","status":"tired","time":1})"}) {
    const std::string before = read_file(path);
    std::ofstream(path, std::ios::app) << bad << "\n";
    expect_exit(ExitCode::kUsage, "s.jsonl:3", [&] { read_study_file(path); });
    EXPECT_EQ(make_json_lines_study_store(folder.path())->studies().size(), 1u) << "the good one is still listed";
    write_file_atomically(path, before);
  }
  std::ofstream(folder.path() / "empty.jsonl") << "";
  expect_exit(ExitCode::kUsage, "no study in it", [&] { read_study_file(folder.path() / "empty.jsonl"); });
  expect_exit(ExitCode::kUsage, "no study", [&] { make_json_lines_study_store(folder.path())->attempts("../s"); });
}

}  // namespace
}  // namespace lockstep::telemetry
