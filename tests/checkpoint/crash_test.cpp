// A process that saves checkpoints in a loop is killed at random moments; what it had published must always load.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <random>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/saver.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kNumbers = 200'000;

// Memory that parent and child share: the last step whose save has returned, and whether a save is going on.
struct Shared {
  std::atomic<std::int64_t> published;
  std::atomic<bool> saving;
};

class SharedPage {
 public:
  SharedPage() : memory_(::mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    new (memory_) Shared{};
  }
  ~SharedPage() { ::munmap(memory_, sizeof(Shared)); }
  Shared* operator->() { return static_cast<Shared*>(memory_); }

 private:
  void* memory_;
};

// Saves for ever. Every second save replaces the step before it, so that replacing is interrupted as well.
[[noreturn]] void save_in_a_loop(const fs::path& directory, std::int64_t first, SharedPage& shared) {
  at::set_num_threads(1);
  for (std::int64_t i = 0;; ++i) {
    CheckpointContents contents;
    const std::int64_t step = contents.facts.step = first + i / 2;
    contents.model["w"] = torch::full({kNumbers}, double(step), torch::kFloat64);
    contents.optimizer["m"] = torch::full({kNumbers}, -double(step), torch::kFloat32);
    contents.facts.loader = {{"consumed", step}};
    shared->saving = true;
    save_checkpoint(part_of(contents), {.directory = directory, .keep = 2});
    shared->published = step;
    shared->saving = false;
  }
}

TEST(CheckpointCrash, thirty_kills_never_cost_a_published_checkpoint) {
  const TemporaryFolder folder;
  const fs::path directory = folder.path() / "checkpoints";
  SharedPage shared;
  std::mt19937 random(20261115);
  int killed_while_saving = 0;
  for (int round = 0; round < 30; ++round) {
    const std::int64_t before = shared->published;
    const pid_t child = ::fork();
    if (child == 0) save_in_a_loop(directory, before + 1, shared);
    const Deadline deadline = Deadline::after(60.0);
    while (shared->published <= before && !deadline.expired())
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    ::kill(child, SIGKILL);
    ASSERT_EQ(::waitpid(child, nullptr, 0), child);
    killed_while_saving += shared->saving;

    std::string warnings;
    const auto found = find_latest(directory, [&](const std::string& text) { warnings += text + "\n"; });
    ASSERT_TRUE(found) << "after kill " << round;
    EXPECT_EQ(warnings, "") << "a folder with a checkpoint's name was not a checkpoint";
    ASSERT_GE(found->step, shared->published.load()) << "a published checkpoint is gone";
    shared->published = found->step;
    for (const CheckpointInfo& info : list_checkpoints(directory)) {
      const auto damage = verify_checkpoint(info.path);
      ASSERT_TRUE(damage.empty()) << damage[0].to_string();
    }
    const CheckpointContents contents = CheckpointReader::open(found->path).read(0);
    EXPECT_EQ(contents.facts.loader.at("consumed"), found->step);
    EXPECT_TRUE(torch::equal(contents.model.at("w"), torch::full({kNumbers}, double(found->step), torch::kFloat64)));
    EXPECT_TRUE(
        torch::equal(contents.optimizer.at("m"), torch::full({kNumbers}, -double(found->step), torch::kFloat32)));
  }
  ::printf("%d of 30 kills fell into a save\n", killed_while_saving);
  EXPECT_GE(killed_while_saving, 10) << "too few kills fell into a save: the test shows little";
  std::vector<fs::path> junk;
  CheckpointPart last;
  last.facts.step = shared->published + 1;
  save_checkpoint(last, {.directory = directory, .keep = 2});
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename();
    if (name.front() == '.' && name != ".lock") junk.push_back(entry.path());
  }
  EXPECT_TRUE(junk.empty()) << junk.front();
}

}  // namespace
}  // namespace lockstep::checkpoint
