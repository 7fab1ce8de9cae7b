// A save that dies at every single call it makes to the file system: the previous checkpoint or the new one must load.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <barrier>
#include <map>
#include <mutex>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "tests/checkpoint/sample_checkpoint.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

struct Crash : std::runtime_error {
  Crash() : std::runtime_error("crashed here") {}
};

// Works until call number `last`, which happens by half (a write) or not at all; nothing works afterwards. What was not
// fsynced by then is lost: those files are emptied.
class DyingFiles : public FileLayer {
 public:
  explicit DyingFiles(int last) : last_(last) {}

  UniqueFd create(const fs::path& path) const override {
    step();
    const std::lock_guard guard(mutex_);
    unsynced_[path.string()] = true;
    return FileLayer::create(path);
  }
  void reserve(const UniqueFd& file, const fs::path& path, std::uint64_t bytes) const override {
    step();
    FileLayer::reserve(file, path, bytes);
  }
  void write(const UniqueFd& file, const fs::path& path, const void* data, std::size_t bytes) const override {
    try {
      step();
    } catch (const Crash&) {
      if (just_died()) FileLayer::write(file, path, data, bytes / 2);
      throw;
    }
    FileLayer::write(file, path, data, bytes);
  }
  void sync(const UniqueFd& file, const fs::path& path) const override {
    step();
    FileLayer::sync(file, path);
    const std::lock_guard guard(mutex_);
    unsynced_.erase(path.string());
  }
  void rename(const fs::path& from, const fs::path& to) const override {
    step();
    FileLayer::rename(from, to);
    moved(from, to);
  }
  bool exchange(const fs::path& a, const fs::path& b) const override {
    step();
    if (!FileLayer::exchange(a, b)) return false;
    moved(a, b);
    return true;
  }
  void sync_folder(const fs::path& folder) const override {
    step();
    FileLayer::sync_folder(folder);
  }
  bool make_folder(const fs::path& folder) const override {
    step();
    return FileLayer::make_folder(folder);
  }
  void remove_all(const fs::path& path) const override {
    if (!dead()) FileLayer::remove_all(path);
  }

  int calls() const { return calls_; }
  bool dead() const { return calls_ >= last_; }
  // What the disk has after the power is back.
  void lose_unsynced() const {
    for (const auto& [path, unsynced] : unsynced_) {
      std::error_code ignored;
      fs::resize_file(path, 0, ignored);
    }
  }

 private:
  void step() const {
    const std::lock_guard guard(mutex_);
    if (calls_ >= last_) throw Crash();
    if (++calls_ == last_) throw Crash();
  }
  bool just_died() const { return calls_ == last_ && !std::exchange(told_, true); }
  void moved(const fs::path& from, const fs::path& to) const {
    const std::lock_guard guard(mutex_);
    std::map<std::string, bool> renamed;
    for (const auto& [path, unsynced] : unsynced_) {
      const bool inside = fs::path(path).parent_path() == from;
      renamed[inside ? (to / fs::path(path).filename()).string() : path] = unsynced;
    }
    unsynced_ = std::move(renamed);
  }

  const int last_;
  mutable std::mutex mutex_;
  mutable int calls_ = 0;
  mutable bool told_ = false;
  mutable std::map<std::string, bool> unsynced_;
};

// One try: step 1 is there, step `next` is saved until the file system dies. Returns the calls made, or -1 when the
// save lived to its end.
int die_at(int call, std::int64_t next) {
  const TemporaryFolder folder;
  const fs::path directory = folder.path() / "deep" / "checkpoints";
  constexpr std::int64_t kNumbers = 1500;
  save_checkpoint(part_of(contents_at(1, 0, kNumbers)), {.directory = directory, .keep = 1});
  const DyingFiles files(call);
  bool saved = false;
  try {
    save_checkpoint(part_of(contents_at(next, 0, kNumbers)), {.directory = directory, .keep = 1, .files = &files});
    saved = true;
  } catch (const UserError&) {
    EXPECT_TRUE(files.dead());
  }
  files.lose_unsynced();
  std::string warnings;
  const auto found = find_latest(directory, [&](const std::string& text) { warnings += text; });
  EXPECT_EQ(warnings, "") << "a folder with a checkpoint's name was not a checkpoint, call " << call;
  if (!found) {
    ADD_FAILURE() << "nothing loads after a crash at call " << call;
    return -1;
  }
  EXPECT_TRUE(found->step == 1 || found->step == next);
  EXPECT_TRUE(!saved || found->step == next);
  expect_step(CheckpointReader::open(found->path).read(0), found->step);
  // And the next save works and leaves no junk.
  save_checkpoint(part_of(contents_at(9, 0, kNumbers)), {.directory = directory, .keep = 1});
  EXPECT_EQ(names_in(directory), (std::vector<std::string>{".lock", "step-00000009"})) << "call " << call;
  return files.dead() ? files.calls() : -1;
}

TEST(CheckpointFaults, a_crash_at_any_call_leaves_the_previous_or_the_new_checkpoint) {
  int call = 1;
  while (die_at(call, 2) >= 0) ++call;
  ::printf("died at each of %d calls\n", call - 1);
  EXPECT_GE(call, 14) << "too few calls: the layer does not see them";
}

TEST(CheckpointFaults, so_does_a_crash_while_a_step_is_replaced) {
  int call = 1;
  while (die_at(call, 1) >= 0) ++call;
  EXPECT_GE(call, 14);
}

// A disk that is full for a while.
class FullDisk : public FileLayer {
 public:
  void write(const UniqueFd& file, const fs::path& path, const void* data, std::size_t bytes) const override {
    if (full) throw io_error("write", path, ENOSPC);
    FileLayer::write(file, path, data, bytes);
  }
  mutable std::atomic<bool> full = true;
};

TEST(CheckpointFaults, a_full_disk_fails_the_save_and_the_next_one_works) {
  const TemporaryFolder folder;
  const FullDisk files;
  Saver saver({.directory = folder.path() / "checkpoints", .files = &files});
  saver.begin(part_of(contents_at(1)));
  const SaveOutcome first = finish_save(saver, {});
  EXPECT_FALSE(first.saved);
  EXPECT_NE(first.problem.find("no space"), std::string::npos) << first.problem;
  files.full = false;
  saver.begin(part_of(contents_at(2)));
  EXPECT_TRUE(finish_save(saver, {}).saved);
  EXPECT_EQ(names_in(folder.path() / "checkpoints"), (std::vector<std::string>{".lock", "step-00000002"}));
}

// A disk that stands still until it is told to go on.
class StuckDisk : public FileLayer {
 public:
  void sync(const UniqueFd& file, const fs::path& path) const override {
    while (stuck) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    FileLayer::sync(file, path);
  }
  mutable std::atomic<bool> stuck = true;
};

TEST(CheckpointFaults, tensors_may_change_as_soon_as_begin_returns) {
  const TemporaryFolder folder;
  const StuckDisk files;
  Saver saver({.directory = folder.path() / "checkpoints", .files = &files});
  CheckpointContents contents = contents_at(3);
  saver.begin(part_of(contents));
  for (auto& [name, tensor] : contents.model) tensor.fill_(-1);
  EXPECT_TRUE(saver.busy());
  EXPECT_EQ(saver.progress().written, 0);
  EXPECT_FALSE(saver.advance(saver.progress()));
  files.stuck = false;
  EXPECT_TRUE(finish_save(saver, {}).saved);
  EXPECT_FALSE(saver.busy());
  expect_step(CheckpointReader::open(folder.path() / "checkpoints/step-00000003").read(0), 3);
}

TEST(CheckpointFaults, a_save_that_took_too_long_is_known_as_such_and_the_next_one_works) {
  const TemporaryFolder folder;
  const StuckDisk files;
  Saver saver({.directory = folder.path() / "checkpoints", .timeout_seconds = 0.05, .files = &files});
  saver.begin(part_of(contents_at(1)));
  while (saver.progress().expired == 0) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(saver.advance(saver.progress())) << "it is stuck: nobody knows yet how it ends";
  files.stuck = false;
  const SaveOutcome outcome = finish_save(saver, {});
  EXPECT_TRUE(outcome.expired);
  saver.begin(part_of(contents_at(2)));
  EXPECT_TRUE(finish_save(saver, {}).saved);
}

TEST(CheckpointFaults, the_probe_names_a_folder_that_cannot_be_written) {
  const TemporaryFolder folder;
  const FullDisk files;
  const SaverOptions options{.directory = folder.path() / "checkpoints", .session = "s", .files = &files};
  try {
    probe_directory(options, [](double value) { return value; });
    FAIL() << "the disk is full";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_NE(std::string(error.what()).find("checkpoints cannot be saved"), std::string::npos) << error.what();
  }
  files.full = false;
  probe_directory(options, [](double value) { return value; });
  EXPECT_TRUE(names_in(folder.path() / "checkpoints").empty()) << "the probe's file is gone";
}

TEST(CheckpointFaults, the_probe_finds_a_folder_that_ranks_do_not_share) {
  const TemporaryFolder folder;
  std::vector<std::string> problems(2);
  std::barrier meeting(2);
  std::array<double, 2> said = {};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank) {
    ranks.emplace_back([&, rank] {
      const SaverOptions options{
          .directory = folder.path() / std::to_string(rank), .rank = rank, .world = 2, .session = "s"};
      try {
        probe_directory(options, [&](double value) {
          said[static_cast<std::size_t>(rank)] = value;
          meeting.arrive_and_wait();
          const double sum = said[0] + said[1];
          meeting.arrive_and_wait();
          return sum;
        });
      } catch (const UserError& error) {
        problems[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const std::string& problem : problems) {
    EXPECT_NE(problem.find("all nodes share"), std::string::npos) << problem;
  }
}

}  // namespace
}  // namespace lockstep::checkpoint
