// Saves of a run that go wrong: training goes on, and only the last state must be saved.
#include "lockstep/engine/run_checkpoints.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/local.h"
#include "tests/engine/training_run.h"

namespace lockstep::engine {
namespace {

namespace fs = std::filesystem;

constexpr const char* kEveryStep = "batch: {micro: 4, sequence_length: 64}\nsteps: 6\ncheckpoint: {every_steps: 1}\n";

// Fails writes of checkpoints while `full`, after `sound` files of them.
class FullDisk : public checkpoint::FileLayer {
 public:
  UniqueFd create(const fs::path& path) const override {
    if (path.extension() == ".safetensors") ++created;
    return FileLayer::create(path);
  }
  void write(const UniqueFd& file, const fs::path& path, const void* data, std::size_t bytes) const override {
    if (path.extension() == ".safetensors" && created > sound && full) {
      throw checkpoint::io_error("write", path, ENOSPC);
    }
    FileLayer::write(file, path, data, bytes);
  }
  mutable std::atomic<int> created = 0;
  int sound = 0;
  std::atomic<bool> full = true;
};

bool has_note(const TrainingRun& run, const std::string& text) {
  return std::any_of(run.notes.begin(), run.notes.end(),
                     [&](const std::string& note) { return note.find(text) != std::string::npos; });
}

TEST(RunCheckpoints, a_failed_save_is_a_warning_and_the_run_goes_on) {
  TrainingRuns runs;
  FullDisk files;
  files.full = true;
  const spec::Job job = runs.job(kEveryStep);
  // The first save fails; the disk has room again before the last.
  const TrainingRun run =
      runs.run(job, {.checkpoints = "full", .files = &files, .on_note = [&](const std::string& note) {
                       if (note.find("was not saved") != std::string::npos) files.full = false;
                     }});
  EXPECT_EQ(run.summary.at("exit_code"), 0);
  EXPECT_EQ(run.losses.size(), 6u);
  EXPECT_TRUE(has_note(run, "no space"));
  EXPECT_TRUE(has_note(run, "the next try is in 5 s, the last good one is none"));
  EXPECT_FALSE(runs.checkpoint("full", 6).empty());
}

TEST(RunCheckpoints, the_last_state_must_be_saved_and_the_last_good_one_is_named) {
  TrainingRuns runs;
  FullDisk files;
  files.sound = 1;  // that of the first save
  try {
    runs.run(runs.job(kEveryStep), {.checkpoints = "full", .files = &files});
    FAIL() << "the disk is full";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    const std::string what = error.what();
    EXPECT_NE(what.find("the state of step 6 was not saved"), std::string::npos) << what;
    EXPECT_NE(what.find("step-00000001"), std::string::npos) << what;
  }
  EXPECT_EQ(checkpoint::find_latest(runs.folder("full"))->step, 1);
}

TEST(RunCheckpoints, a_folder_that_cannot_be_written_ends_the_run_before_the_first_step) {
  TrainingRuns runs;
  std::ofstream(runs.folder("file")) << "not a folder";
  try {
    runs.run(runs.job(kEveryStep), {.checkpoints = "file/checkpoints"});
    FAIL() << "there is no folder";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kEnvironment);
    EXPECT_NE(std::string(error.what()).find("checkpoints cannot be saved"), std::string::npos) << error.what();
  }
}

// Two ranks as threads save one step; the second one sleeps within its stall.
TEST(RunCheckpoints, the_stall_that_is_told_is_that_of_the_slowest_rank) {
  const TrainingRuns runs;
  spec::Job job = runs.job(kEveryStep);
  job.cluster = {};  // the ranks are here
  comm::LocalWorld world(2, comm::milliseconds{300'000});
  double told = 0;
  const auto rank = [&](int number) {
    LockstepEngineHost host{&told,
                            [](void* context, const char* text) {
                              const nlohmann::json message = nlohmann::json::parse(text);
                              if (message.at("type") != "checkpoint") return;
                              *static_cast<double*>(context) = message.at("stall_seconds");
                            },
                            [](void*) { return 0; }};
    elastic::RankRequest request;
    request.checkpoint_directory = runs.folder("both").string();
    plan::Layout layout = one_rank(job);
    layout.dp = 2;
    RunContext context{request, job, plan::run_of(job, layout), world.communicator(number), nullptr, Host(&host)};
    RunHealth health(job.health, false);
    RunCheckpoints checkpoints(context, health, [&](const std::function<void()>& check) {
      check();
      if (number == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
    });
    TrainingState state = build_training_state(job, context.run, context.world);
    state.step = 1;
    checkpoints.save_last(state);
  };
  std::thread other([&] { rank(1); });
  rank(0);
  other.join();
  EXPECT_GE(told, 0.3);
}

TEST(RunCheckpoints, the_newest_that_proved_sound_is_pinned_when_others_are_rotated_out) {
  TrainingRuns runs;
  const spec::Job job =
      runs.job("batch: {micro: 4, sequence_length: 64}\nsteps: 400\ncheckpoint: {every_steps: 10, keep: 1}\n");
  runs.run(job, {.checkpoints = "kept"});
  int pinned = 0;
  for (const checkpoint::CheckpointInfo& info : checkpoint::list_checkpoints(runs.folder("kept"))) {
    pinned += checkpoint::is_pinned(info.path) ? 1 : 0;
  }
  EXPECT_EQ(pinned, 1);
}

TEST(RunCheckpoints, without_a_cadence_of_the_job_it_says_the_one_it_chose) {
  TrainingRuns runs;
  const TrainingRun run = runs.run(runs.job(), {.checkpoints = "auto"});
  EXPECT_TRUE(has_note(run, "checkpoints every 15m 0s to begin with")) << "half of the bound";
  EXPECT_TRUE(has_note(run, "no failures are expected"));
}

TEST(RunCheckpoints, says_how_much_a_resume_read_and_held) {
  TrainingRuns runs;
  const spec::Job job = runs.job(kEveryStep);
  runs.run(job, {.checkpoints = "whole"});
  const TrainingRun again = runs.run(job, {.checkpoints = "whole", .resume_from = runs.checkpoint("whole", 6)});
  EXPECT_TRUE(has_note(again, "of memory beside the state"));
}

}  // namespace
}  // namespace lockstep::engine
