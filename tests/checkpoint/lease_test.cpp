#include "lockstep/checkpoint/lease.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <nlohmann/json.hpp>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"

namespace lockstep::checkpoint {
namespace {

const LeaseOptions kQuick{
    .wait_seconds = 0.2, .own_run_seconds = 0.1, .beat_seconds = 0.05, .silent_seconds = 1.0, .use_lock = true};
const LeaseOptions kNoLocks{
    .wait_seconds = 0.2, .own_run_seconds = 0.1, .beat_seconds = 0.05, .silent_seconds = 1.0, .use_lock = false};

nlohmann::json lease_file(const std::filesystem::path& folder) {
  return nlohmann::json::parse(read_file(folder / ".lease"));
}

// As another host left it.
void write_foreign(const std::filesystem::path& folder, std::int64_t beat) {
  const nlohmann::json said = {{"run", "theirs"},     {"host", "far-away"}, {"pid", 1},
                               {"pid_started", 1},    {"started_at", 1.0},  {"generation", 4},
                               {"given_back", false}, {"beat", beat}};
  write_file_atomically(folder / ".lease", said.dump());
}

std::string refusal(const std::filesystem::path& folder, const LeaseOptions& options) {
  try {
    Lease::take(folder, "second", options);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    return error.what();
  }
  return "";
}

TEST(Lease, a_second_run_is_refused_and_told_who_has_the_folder) {
  const TemporaryFolder folder;
  const auto first = Lease::take(folder.path() / "made", "first", kQuick);
  const std::string message = refusal(folder.path() / "made", kQuick);
  EXPECT_NE(message.find("run first (process " + std::to_string(::getpid())), std::string::npos) << message;
  first->check();
}

TEST(Lease, a_folder_that_was_given_back_is_taken_with_the_next_generation) {
  const TemporaryFolder folder;
  Lease::take(folder.path(), "first", kQuick).reset();
  EXPECT_TRUE(lease_file(folder.path()).at("given_back"));
  EXPECT_EQ(Lease::take(folder.path(), "second", kQuick)->owner().generation, 2);
}

TEST(Lease, a_run_that_lost_its_folder_is_told_by_check) {
  const TemporaryFolder folder;
  const auto first = Lease::take(folder.path(), "first", kQuick);
  write_foreign(folder.path(), 1);
  EXPECT_THROW(first->check(), UserError);
}

TEST(Lease, a_run_takes_the_folder_from_its_own_rank_that_is_cut_off_and_may_not_write_any_more) {
  for (const LeaseOptions& options : {kQuick, kNoLocks}) {
    const TemporaryFolder folder;
    const auto cut_off = Lease::take(folder.path(), "mine", options);
    const auto next = Lease::take(folder.path(), "mine", options);
    EXPECT_THROW(cut_off->check(), UserError);
    next->check();
    EXPECT_NE(refusal(folder.path(), options).find("run mine"), std::string::npos);
  }
}

TEST(Lease, another_host_that_beats_is_alive) {
  const TemporaryFolder folder;
  write_foreign(folder.path(), 1);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    write_foreign(folder.path(), 2);
  });
  EXPECT_NE(refusal(folder.path(), kQuick).find("run theirs (process 1 on far-away"), std::string::npos);
  other.join();
}

TEST(Lease, another_host_that_falls_silent_is_followed) {
  const TemporaryFolder folder;
  write_foreign(folder.path(), 1);
  EXPECT_EQ(Lease::take(folder.path(), "second", kQuick)->owner().generation, 5);
}

TEST(Lease, without_locks_the_beat_decides) {
  const TemporaryFolder folder;
  {
    const auto first = Lease::take(folder.path(), "first", kNoLocks);
    EXPECT_NE(refusal(folder.path(), kNoLocks).find("run first"), std::string::npos);
  }
  EXPECT_EQ(Lease::take(folder.path(), "second", kNoLocks)->owner().generation, 2);
}

}  // namespace
}  // namespace lockstep::checkpoint
