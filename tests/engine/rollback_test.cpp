// A run whose numbers go wrong goes back to a kept state and on behind the data that went wrong.
#include <gtest/gtest.h>

#include "lockstep/base/error.h"
#include "lockstep/engine/training_step.h"
#include "tests/engine/fake_step.h"
#include "tests/engine/training_run.h"

namespace lockstep::engine {
namespace {

constexpr std::int64_t kSamples = 4;  // of a step

// Finds a gradient that is not finite in some of its steps, counted from 1 over all that it does.
class Stumbling : public FakeStep {
 public:
  Stumbling(const spec::Job& job, std::vector<int> bad) : FakeStep(job), bad_(std::move(bad)) {}
  void submit(const std::vector<data::Batch>& batches, double learning_rate) override {
    ++done_;
    stumbles_ = std::find(bad_.begin(), bad_.end(), done_) != bad_.end();
    if (!stumbles_) FakeStep::submit(batches, learning_rate);
  }
  Result wait() override { return stumbles_ ? Result{5.0, NAN, true, 0.0} : FakeStep::wait(); }

 private:
  std::vector<int> bad_;
  int done_ = 0;
  bool stumbles_ = false;
};

DeviceStepMaker stumbling(std::vector<int> bad) {
  return [bad](const spec::Job& job, const plan::Run&, torch::Device) {
    return DeviceStepChoice{std::make_unique<Stumbling>(job, bad), {}};
  };
}

spec::Job job_of(const TrainingRuns& runs, const std::string& health) {
  return runs.job(
      fmt::format("batch: {{micro: 4, sequence_length: 64}}\nsteps: 12\nhealth: {}\n"
                  "checkpoint: {{every_steps: 3, keep: 99}}\n",
                  health));
}

TEST(Rollback, goes_back_to_a_kept_state_and_on_behind_the_data_that_went_wrong) {
  TrainingRuns runs;
  const spec::Job job = job_of(runs, "{nonfinite: rollback, rollback_steps: 3}");
  const TrainingRun told = runs.run(job, {.make_step = stumbling({8}), .checkpoints = "ck"});
  // State is kept after steps 0, 3 and 6; that of step 6 is not old enough at step 8.
  EXPECT_EQ(told.summary.at("rollbacks"), 1);
  EXPECT_EQ(told.summary.at("steps"), 12);
  ASSERT_EQ(told.losses.size(), 8u + 9u);
  const checkpoint::CheckpointContents end = runs.contents("ck", 12);
  EXPECT_EQ(end.facts.loader.at("samples"), 17 * kSamples);

  // The same by hand: the state of step 3, the ninth batch.
  const TrainingRun whole = runs.run(job, {.make_step = stumbling({}), .checkpoints = "whole"});
  comm::LocalWorld world(1);
  comm::Communicator communicator = world.communicator(0);
  TrainingState state =
      build_training_state(job, plan::run_of(job, one_rank(job)), communicator, {.make_step = stumbling({})});
  restore(state, runs.contents("whole", 3), job, 1);
  state.loader->seek({0, 8 * kSamples}, 3);
  EXPECT_EQ(run_step(state, {}).loss, told.losses[8]);
  EXPECT_EQ(whole.summary.at("rollbacks"), 0);
}

TEST(Rollback, the_last_one_that_is_allowed_is_followed_by_the_end) {
  TrainingRuns runs;
  const spec::Job job = job_of(runs, "{nonfinite: rollback, rollback_steps: 3, max_rollbacks: 1}");
  try {
    runs.run(job, {.make_step = stumbling({5, 9})});
    FAIL() << "two rollbacks";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kRunFailed);
    EXPECT_NE(std::string(error.what()).find("after 1 rollbacks"), std::string::npos) << error.what();
  }
}

TEST(Rollback, of_the_first_steps_goes_back_to_the_beginning) {
  TrainingRuns runs;
  const spec::Job job = job_of(runs, "{nonfinite: rollback, rollback_steps: 100}");
  const TrainingRun told = runs.run(job, {.make_step = stumbling({2})});
  EXPECT_EQ(told.losses.size(), 2u + 12u);
  EXPECT_EQ(told.summary.at("rollbacks"), 1);
}

}  // namespace
}  // namespace lockstep::engine
