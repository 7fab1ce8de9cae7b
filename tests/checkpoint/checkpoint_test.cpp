#include "lockstep/checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <torch/types.h>
#include <unistd.h>

#include <fstream>
#include <thread>

#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/checkpoint/saver.h"
#include "tests/checkpoint/sample_checkpoint.h"

namespace lockstep::checkpoint {
namespace {

namespace fs = std::filesystem;

class Checkpoint : public ::testing::Test {
 protected:
  fs::path directory() const { return folder_.path() / "checkpoints"; }
  SaveOutcome save(std::int64_t step, std::int64_t keep = 100, std::int64_t numbers = 1000) {
    return save_checkpoint(part_of(contents_at(step, 0, numbers)), {.directory = directory(), .keep = keep});
  }
  // Runs save on `world` ranks as threads; returns what each rank threw, "" for nothing.
  std::vector<std::string> save_on_ranks(int world, const std::function<CheckpointContents(int)>& make) {
    SumOfThreads sum(world);
    std::vector<std::string> errors(world);
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < world; ++rank) {
      ranks.emplace_back([&, rank] {
        try {
          save_checkpoint(part_of(make(rank), rank == 0),
                          {.directory = directory(), .rank = rank, .world = world, .session = "run"},
                          [&](const SaveProgress& own) { return sum(rank, own); });
        } catch (const std::exception& error) {
          errors[rank] = error.what();
        }
      });
    }
    for (auto& rank : ranks) rank.join();
    return errors;
  }
  TemporaryFolder folder_;
};

TEST_F(Checkpoint, gives_back_what_was_saved) {
  const SaveOutcome saved = save(123);
  EXPECT_EQ(saved.path, directory() / "step-00000123");
  EXPECT_EQ(names_in(saved.path),
            (std::vector<std::string>{"manifest.json", "rank-00000.json", "rank-00000.safetensors"}));
  EXPECT_TRUE(verify_checkpoint(saved.path).empty());
  const auto reader = CheckpointReader::open(saved.path);
  EXPECT_EQ(reader.info().step, 123);
  EXPECT_EQ(reader.info().bytes, saved.bytes);
  expect_step(reader.read(0), 123);
}

TEST_F(Checkpoint, holds_one_part_per_rank_and_the_shared_part_once) {
  for (const auto& error : save_on_ranks(4, [](int rank) { return contents_at(7, rank); })) EXPECT_EQ(error, "");
  const fs::path path = directory() / "step-00000007";
  EXPECT_EQ(names_in(path).size(), 1u + 2u * 4u);
  EXPECT_TRUE(verify_checkpoint(path).empty());
  const auto reader = CheckpointReader::open(path);
  EXPECT_EQ(reader.info().world, 4);
  for (int rank = 0; rank < 4; ++rank) expect_step(reader.read(rank), 7, rank);
  const CheckpointContents beyond = reader.read(4);  // more ranks than before
  EXPECT_TRUE(beyond.rank_tensors.empty());
  EXPECT_TRUE(beyond.facts.rank_state.empty());
  EXPECT_FALSE(beyond.model.empty());
}

TEST_F(Checkpoint, fails_on_every_rank_when_one_rank_cannot_save_and_keeps_the_previous) {
  save(6);
  const auto errors = save_on_ranks(3, [](int rank) {
    CheckpointContents contents = contents_at(7, rank);
    if (rank == 1) contents.rank_tensors["bad"] = torch::zeros({1}, torch::kComplexFloat);
    return contents;
  });
  EXPECT_NE(errors[0].find("1 of 3 ranks could not save"), std::string::npos) << errors[0];
  EXPECT_NE(errors[1].find("cannot be stored"), std::string::npos) << errors[1];
  EXPECT_NE(errors[2].find("1 of 3 ranks could not save"), std::string::npos) << errors[2];
  EXPECT_EQ(names_in(directory()), (std::vector<std::string>{".lock", "step-00000006"}));
  EXPECT_EQ(find_latest(directory())->step, 6);
}

TEST_F(Checkpoint, replaces_a_checkpoint_of_the_same_step) {
  save(5, 100, 10);
  save(5, 100, 20);
  EXPECT_EQ(names_in(directory()), (std::vector<std::string>{".lock", "step-00000005"}));
  EXPECT_EQ(CheckpointReader::open(directory() / "step-00000005").read(0).model.at("layer.weight").numel(), 20);
}

TEST_F(Checkpoint, gives_a_reader_the_checkpoint_it_opened_even_when_that_is_replaced) {
  save(5, 100, 10);
  const auto reader = CheckpointReader::open(directory() / "step-00000005");
  save(5, 100, 20);
  EXPECT_EQ(reader.read(0).model.at("layer.weight").numel(), 10);
}

TEST_F(Checkpoint, removes_what_a_crashed_save_left_behind) {
  fs::create_directories(directory() / ".tmp-step-00000009");
  std::ofstream(directory() / ".tmp-step-00000009/model.safetensors") << "half";
  save(10);
  EXPECT_EQ(names_in(directory()), (std::vector<std::string>{".lock", "step-00000010"}));
}

TEST_F(Checkpoint, keeps_the_newest_n) {
  for (int step = 1; step <= 6; ++step) save(step, 2);
  EXPECT_EQ(names_in(directory()), (std::vector<std::string>{".lock", "step-00000005", "step-00000006"}));
  const auto listed = list_checkpoints(directory());
  ASSERT_EQ(listed.size(), 2u);
  EXPECT_EQ(listed[0].step, 6);
}

TEST_F(Checkpoint, never_deletes_the_newest_that_verifies) {
  for (int step = 1; step <= 4; ++step) save(step);
  for (int step = 2; step <= 4; ++step)
    flip_bit(directory() / ("step-0000000" + std::to_string(step)) / "rank-00000.safetensors", 700);
  retain(directory(), 1);
  EXPECT_EQ(find_latest(directory())->step, 1);
}

TEST_F(Checkpoint, leaves_alone_what_somebody_reads) {
  save(1);
  {
    const auto reader = CheckpointReader::open(directory() / "step-00000001");
    for (int step = 2; step <= 4; ++step) save(step, 1);
    expect_step(reader.read(0), 1);
  }
  save(5, 1);
  EXPECT_EQ(names_in(directory()), (std::vector<std::string>{".lock", "step-00000005"}));
}

TEST_F(Checkpoint, finds_every_flipped_bit_and_says_where) {
  constexpr std::int64_t kNumbers = 3 << 20;  // 12 MiB of weights: three blocks
  const fs::path path = save(1, 100, kNumbers).path;
  for (const char* name : {"manifest.json", "rank-00000.json", "rank-00000.safetensors"}) {
    const std::uint64_t size = fs::file_size(path / name);
    for (const std::uint64_t offset : {std::uint64_t{0}, size / 2, size - 1}) {
      flip_bit(path / name, offset);
      const auto damage = verify_checkpoint(path);
      ASSERT_EQ(damage.size(), 1u) << name << " at " << offset;
      EXPECT_EQ(damage[0].file, name);
      if (damage[0].bytes > 0) {
        EXPECT_LE(damage[0].offset, offset);
        EXPECT_GT(damage[0].offset + damage[0].bytes, offset);
        EXPECT_LE(damage[0].bytes, kDigestBlockBytes);
      }
      EXPECT_THROW(CheckpointReader::open(path).read(0), UserError);
      flip_bit(path / name, offset);
    }
  }
  EXPECT_TRUE(verify_checkpoint(path).empty());
  flip_bit(path / "rank-00000.safetensors", 30 << 20);
  const std::string said = verify_checkpoint(path).at(0).to_string();
  EXPECT_NE(said.find("rank-00000.safetensors: bytes 29360128..33554432"), std::string::npos) << said;
  EXPECT_NE(said.find("model:layer.weight"), std::string::npos) << said;
}

TEST_F(Checkpoint, notices_missing_cut_and_grown_files) {
  const fs::path path = save(1).path, file = path / "rank-00000.safetensors";
  const std::string bytes = read_file(file);
  fs::resize_file(file, bytes.size() - 1);
  EXPECT_NE(verify_checkpoint(path).at(0).problem.find("bytes long"), std::string::npos);
  fs::resize_file(file, bytes.size() + 1);
  EXPECT_NE(verify_checkpoint(path).at(0).problem.find("bytes long"), std::string::npos);
  fs::remove(file);
  EXPECT_NE(verify_checkpoint(path).at(0).problem.find("cannot be read"), std::string::npos);
  fs::remove(path / "manifest.json");
  EXPECT_EQ(verify_checkpoint(path).at(0).file, "manifest.json");
  EXPECT_FALSE(find_latest(directory()));
}

TEST_F(Checkpoint, falls_back_to_the_previous_one_with_a_warning) {
  save(1);
  save(2);
  save(3);
  flip_bit(directory() / "step-00000003/rank-00000.safetensors", 300);
  fs::remove(directory() / "step-00000002/manifest.json");
  std::vector<std::string> warnings;
  const auto found = find_latest(directory(), [&](const std::string& text) { warnings.push_back(text); });
  ASSERT_TRUE(found);
  EXPECT_EQ(found->step, 1);
  ASSERT_EQ(warnings.size(), 2u);
  EXPECT_NE(warnings[0].find("step-00000003"), std::string::npos);
  EXPECT_NE(warnings[0].find("rank-00000.safetensors"), std::string::npos);
}

TEST_F(Checkpoint, finds_nothing_where_there_is_nothing) {
  EXPECT_FALSE(find_latest(directory()));
  EXPECT_TRUE(list_checkpoints(directory()).empty());
  EXPECT_TRUE(retain(directory(), 1).empty());
  EXPECT_THROW(CheckpointReader::open(directory() / "step-00000001"), UserError);
}

TEST_F(Checkpoint, refuses_a_checkpoint_under_another_steps_name) {
  save(1);
  fs::rename(directory() / "step-00000001", directory() / "step-00000099");
  EXPECT_FALSE(find_latest(directory()));
}

TEST_F(Checkpoint, refuses_a_second_run_in_the_same_directory) {
  Saver first({.directory = directory()});
  first.begin(part_of(contents_at(3)));
  while (first.progress().written == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::string refused;
  try {
    save(2);  // while the first one's is in flight
  } catch (const UserError& error) {
    refused = error.what();
  }
  EXPECT_NE(refused.find("another run"), std::string::npos) << refused;
  EXPECT_TRUE(finish_save(first, {}).saved);
  EXPECT_TRUE(verify_checkpoint(directory() / "step-00000003").empty());
}

TEST_F(Checkpoint, keeps_what_is_pinned_whatever_its_age) {
  save(1);
  pin_checkpoint(directory() / "step-00000001", true);
  for (int step = 2; step <= 4; ++step) save(step, 2);
  EXPECT_EQ(names_in(directory()),
            (std::vector<std::string>{".lock", "step-00000001", "step-00000003", "step-00000004"}));
  pin_checkpoint(directory() / "step-00000001", false);
  save(5, 2);
  EXPECT_EQ(names_in(directory()), (std::vector<std::string>{".lock", "step-00000004", "step-00000005"}));
}

// The limit on file sizes stands in for a full disk: write() fails in the middle of a file.
TEST_F(Checkpoint, survives_a_full_disk) {
  save(1, 100, 100);
  // In this process: a fork would inherit libtorch's thread pool without its threads.
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{64 << 10, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  std::string what;
  ExitCode code = ExitCode::kOk;
  try {
    save(2, 1, 100'000);
  } catch (const UserError& error) {
    what = error.what();
    code = error.code();
  }
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  ::signal(SIGXFSZ, old_handler);
  EXPECT_EQ(code, ExitCode::kEnvironment);
  EXPECT_NE(what.find("no space"), std::string::npos) << what;
  EXPECT_NE(what.find("rank-00000.safetensors"), std::string::npos) << what;
  EXPECT_EQ(names_in(directory()), (std::vector<std::string>{".lock", "step-00000001"}));
  expect_step(CheckpointReader::open(find_latest(directory())->path).read(0), 1);
}

}  // namespace
}  // namespace lockstep::checkpoint
