// Several processes on one store, processes that are killed, and a store that is locked by somebody else.
#include <gtest/gtest.h>
#include <signal.h>
#include <sqlite3.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/telemetry/recorder.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::telemetry {
namespace {

// Runs `body` in a child process; its exit code is 0 when body returns true.
template <class Body>
pid_t spawn(Body body) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  bool good = false;
  try {
    good = body();
  } catch (...) {
  }
  ::_exit(good ? 0 : 1);
}

bool succeeded(pid_t child) {
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Records into tables only, without falling back to anything.
std::unique_ptr<Recorder> make_sqlite_recorder(const std::filesystem::path& path, QueueOptions options) {
  const auto store = std::make_shared<std::unique_ptr<RunStore>>();
  return make_queued_recorder(
      [path, store](std::span<const Record> batch) {
        if (!*store) *store = make_sqlite_run_store(path, true, 0.5);
        (*store)->write("run", batch);
      },
      options);
}

std::string integrity(const std::filesystem::path& path) {
  sqlite3* handle = nullptr;
  sqlite3_open(path.c_str(), &handle);
  std::string answer;
  sqlite3_exec(
      handle, "PRAGMA integrity_check",
      [](void* text, int, char** row, char**) {
        *static_cast<std::string*>(text) = row[0];
        return 0;
      },
      &answer, nullptr);
  sqlite3_close(handle);
  return answer;
}

TEST(Processes, four_ranks_record_into_one_new_store_and_nothing_is_lost) {
  const TemporaryFolder folder;
  const auto path = store_file(folder.path());
  constexpr int kSteps = 1000;
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.push_back(spawn([&] {
      auto recorder = make_sqlite_recorder(path, {.capacity = 1'000'000, .batch_seconds = 0.005});
      if (rank == 0) recorder->begin_run(describe_this_process({.id = "run", .name = "job", .world = 4}));
      for (int step = 0; step < kSteps; ++step) {
        recorder->metrics(rank, step, {{"loss", 1.0 / (step + 1)}, {"step_seconds", 0.1}});
        if (step % 100 == 0) recorder->event({.kind = "tick", .rank = rank, .step = step});
        if (step % 50 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
      return recorder->flush(60.0) && recorder->stats().dropped == 0;
    }));
  }
  for (const pid_t rank : ranks) EXPECT_TRUE(succeeded(rank));
  const auto store = make_sqlite_run_store(path, false);
  EXPECT_EQ(integrity(path), "ok");
  ASSERT_EQ(store->runs().size(), 1u);
  EXPECT_EQ(store->find("run")->info.name, "job");
  const auto summaries = store->per_rank("run", "loss");
  ASSERT_EQ(summaries.size(), 4u);
  for (const auto& summary : summaries) EXPECT_EQ(summary.points, kSteps);
  EXPECT_EQ(store->events("run").size(), 4u * kSteps / 100);
}

TEST(Processes, a_killed_writer_leaves_a_sound_store) {
  const TemporaryFolder folder;
  const auto path = store_file(folder.path());
  std::mt19937 random(7);
  std::int64_t most = 0;
  for (int round = 0; round < 12; ++round) {
    const pid_t child = spawn([&]() -> bool {
      auto recorder = make_sqlite_recorder(path, {.batch_seconds = 0.0});
      for (std::int64_t step = 0;; ++step) {
        recorder->metrics(0, round * 1'000'000 + step, {{"loss", 1.0}, {"a", 2.0}, {"b", 3.0}});
        if (step % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(20 + random() % 150));
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    const auto store = make_sqlite_run_store(path);
    ASSERT_EQ(integrity(path), "ok") << "after kill " << round;
    // A batch is there with all its metrics or not at all.
    const auto loss = store->per_rank("run", "loss"), b = store->per_rank("run", "b");
    ASSERT_EQ(loss.empty(), b.empty());
    if (loss.empty()) continue;
    EXPECT_EQ(loss[0].points, b[0].points);
    EXPECT_GE(loss[0].points, most) << "committed records were lost";
    most = loss[0].points;
  }
  EXPECT_GT(most, 0) << "no child lived long enough to write: the test shows nothing";
}

TEST(Processes, a_killed_writer_of_json_lines_leaves_a_file_that_can_be_read) {
  const TemporaryFolder folder;
  const auto file = lines_file(folder.path(), "run", 0);
  std::mt19937 random(8);
  const pid_t child = spawn([&]() -> bool {
    auto recorder = open_recorder(folder.path(), "run", 0, RecordAs::kLines, {.batch_seconds = 0.0});
    for (std::int64_t step = 0;; ++step) recorder->metrics(0, step, {{"loss", 1.0}});
  });
  const Deadline deadline = Deadline::after(60.0);
  std::error_code missing;
  while (!(std::filesystem::file_size(file, missing) > 0 && !missing) && !deadline.expired()) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ::kill(child, SIGKILL);
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(open_run_store(folder.path())->series("run", "loss").empty());
}

// Records into a store that somebody has locked; returns how long each call took, sorted.
std::vector<double> record_into_a_locked_store(const std::filesystem::path& path) {
  make_sqlite_run_store(path);
  sqlite3* locker = nullptr;
  EXPECT_EQ(sqlite3_open(path.c_str(), &locker), SQLITE_OK);
  EXPECT_EQ(sqlite3_exec(locker, "BEGIN EXCLUSIVE", nullptr, nullptr, nullptr), SQLITE_OK);

  auto recorder = make_sqlite_recorder(path, {.capacity = 1000, .batch_seconds = 0.001});
  constexpr int kCalls = 3000;
  std::vector<double> seconds;
  for (int step = 0; step < kCalls; ++step) {
    const Stopwatch watch;
    recorder->metrics(0, step, {{"loss", 1.0}, {"step_seconds", 0.1}});
    recorder->event({.kind = "tick", .step = step});
    seconds.push_back(watch.seconds());
    // Spread over a time in which the background thread runs into the lock again and again.
    std::this_thread::sleep_for(std::chrono::microseconds(300));
  }
  std::sort(seconds.begin(), seconds.end());
  EXPECT_GT(recorder->stats().retries, 0u);
  EXPECT_GT(recorder->stats().dropped, 0u);

  EXPECT_EQ(sqlite3_exec(locker, "COMMIT", nullptr, nullptr, nullptr), SQLITE_OK);
  sqlite3_close(locker);
  EXPECT_TRUE(recorder->flush(60.0));
  const auto store = make_sqlite_run_store(path);
  const auto events = store->events("run");
  EXPECT_EQ(std::count_if(events.begin(), events.end(), [](const Event& event) { return event.kind == "tick"; }),
            kCalls)
      << "events are never dropped";
  EXPECT_TRUE(std::any_of(events.begin(), events.end(), [](const Event& event) {
    return event.kind == "records_lost";
  })) << "what was dropped is said";
  EXPECT_EQ(store->per_rank("run", "loss").at(0).points + std::int64_t(recorder->stats().dropped), kCalls);
  return seconds;
}

TEST(Processes, a_locked_store_loses_no_event_and_counts_what_it_drops) {
  const TemporaryFolder folder;
  record_into_a_locked_store(store_file(folder.path()));
}

TEST(ProcessesTiming, a_locked_store_does_not_slow_recording) {
  const TemporaryFolder folder;
  const std::vector<double> seconds = record_into_a_locked_store(store_file(folder.path()));
  const double typical = seconds[seconds.size() * 99 / 100];
  ::printf("recording into a locked store: median %.1f us, 99%% %.1f us, longest %.3f ms\n",
           seconds[seconds.size() / 2] * 1e6, typical * 1e6, seconds.back() * 1e3);
  EXPECT_LT(typical, 0.005);
  EXPECT_LT(seconds.back(), 0.25) << "half the busy timeout: somebody waited for the lock";
}

}  // namespace
}  // namespace lockstep::telemetry
