// The seam between the trainer and a step of a device, with a step that computes on the CPU what the general path does:
// every number must be the same.
#include "lockstep/engine/device_step.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/engine/fused_executor.h"
#include "lockstep/engine/sharded_optimizer.h"
#include "lockstep/engine/whole_tensors.h"
#include "tests/base/expect_user_error.h"
#include "tests/engine/fake_step.h"
#include "tests/engine/training_run.h"

namespace lockstep::engine {
namespace {

constexpr const char* kSix =
    "batch: {micro: 4, sequence_length: 64}\nsteps: 6\ncheckpoint: {every_steps: 3}\nevaluation: {every: 3, batches: "
    "2}\n";

TEST(DeviceStepSeam, trains_evaluates_and_saves_as_the_general_path_does) {
  TrainingRuns runs;
  const spec::Job job = runs.job(kSix);
  const TrainingRun general = runs.run(job, {.checkpoints = "general"});
  const TrainingRun device = runs.run(job, {.make_step = fake, .checkpoints = "device"});
  ASSERT_EQ(device.losses.size(), 6u);
  EXPECT_EQ(device.losses, general.losses);
  ASSERT_EQ(device.evaluations.size(), 3u);
  EXPECT_EQ(device.evaluations, general.evaluations);
  for (const int step : {3, 6}) {
    EXPECT_EQ(difference(runs.contents("general", step), runs.contents("device", step)), "") << "step " << step;
  }
  EXPECT_EQ(device.summary.at("peak_memory_bytes"), 12345.0);
}

TEST(DeviceStepSeam, says_which_path_runs) {
  TrainingRuns runs;
  const TrainingRun run = runs.run(runs.job(), {.make_step = fake});
  ASSERT_GE(run.notes.size(), 2u);
  EXPECT_EQ(run.notes[1], "step: a fake");
}

TEST(DeviceStepSeam, goes_on_where_the_general_path_stopped_and_the_other_way_round) {
  TrainingRuns runs;
  const spec::Job job = runs.job(kSix);
  runs.run(job, {.checkpoints = "whole"});
  runs.run(job, {.make_step = fake, .checkpoints = "device"});
  const std::string general_at_3 = runs.checkpoint("whole", 3), device_at_3 = runs.checkpoint("device", 3);
  const TrainingRun second =
      runs.run(job, {.make_step = fake, .checkpoints = "device-of-general", .resume_from = general_at_3});
  EXPECT_EQ(second.losses.size(), 3u);
  runs.run(job, {.checkpoints = "general-of-device", .resume_from = device_at_3});
  EXPECT_EQ(difference(runs.contents("whole", 6), runs.contents("device-of-general", 6)), "");
  EXPECT_EQ(difference(runs.contents("whole", 6), runs.contents("general-of-device", 6)), "");
}

TEST(DeviceStepSeam, an_interrupted_run_goes_on_with_the_batch_it_had_fetched) {
  TrainingRuns runs;
  const spec::Job job = runs.job(kSix);
  runs.run(job, {.make_step = fake, .checkpoints = "whole"});
  const TrainingRun first = runs.run(job, {.make_step = fake, .checkpoints = "parts", .stop_after = 1});
  EXPECT_EQ(first.summary.at("exit_code"), 130);
  EXPECT_EQ(first.summary.at("steps"), 2);  // the wish is told with a step
  runs.run(job, {.make_step = fake, .checkpoints = "parts", .resume_from = runs.checkpoint("parts", 2)});
  EXPECT_EQ(difference(runs.contents("whole", 6), runs.contents("parts", 6)), "");
}

TEST(DeviceStepSeam, short_batches_at_the_end_of_an_epoch_are_weighed_as_in_the_general_path) {
  TrainingRuns runs;
  std::ofstream(runs.text()) << made_text(64 * 21);  // 19 samples train: two steps of 8, one of 3
  const spec::Job job = runs.job("batch: {micro: 4, accumulation: 2, sequence_length: 64}\nepochs: 1\n");
  const TrainingRun general = runs.run(job, {});
  const TrainingRun device = runs.run(job, {.make_step = fake});
  EXPECT_GE(general.losses.size(), 3u);
  EXPECT_EQ(device.losses, general.losses);
}

TEST(DeviceStepSeam, an_fp32_run_takes_over_the_master_weights) {
  TrainingRuns runs;
  spec::Job job = runs.job(kSix);
  runs.run(job, {.make_step = fake, .checkpoints = "device"});
  const auto narrow = runs.contents("device", 6);
  job.precision = spec::Precision::kFp32;
  runs.run(job, {.checkpoints = "wide", .resume_from = runs.checkpoint("device", 6)});  // nothing left to do
  comm::LocalWorld world(1);
  comm::Communicator communicator = world.communicator(0);
  TrainingState state = build_training_state(job, plan::run_of(job, one_rank(job)), communicator);
  restore(state, narrow, job, 1);
  const auto wide = checkpoint_contents(state, job, 1);
  for (const auto& [name, value] : wide.model) {
    EXPECT_TRUE(torch::equal(value, narrow.optimizer.at("master." + name))) << name;
  }
}

// A device may round its master weights otherwise than the general path would.
TEST(DeviceStepSeam, weights_come_back_as_they_were_not_rounded_anew) {
  TrainingRuns runs;
  const spec::Job job = runs.job(kSix);
  runs.run(job, {.make_step = fake, .checkpoints = "device"});
  auto saved = runs.contents("device", 6);
  for (auto& [name, value] : saved.model) value = value + value.abs() * 0.01;
  comm::LocalWorld world(1);
  comm::Communicator communicator = world.communicator(0);
  TrainingState state = build_training_state(job, plan::run_of(job, one_rank(job)), communicator);
  restore(state, saved, job, 1);
  EXPECT_EQ(difference(saved, checkpoint_contents(state, job, 1)), "");
}

TEST(DeviceStepSeam, what_the_step_chose_comes_back_with_the_checkpoint) {
  TrainingRuns runs;
  const spec::Job job = runs.job(kSix);
  runs.run(job, {.make_step = fake, .checkpoints = "device"});
  comm::LocalWorld world(1);
  comm::Communicator communicator = world.communicator(0);
  TrainingState state = build_training_state(job, plan::run_of(job, one_rank(job)), communicator, {.make_step = fake});
  restore(state, runs.contents("device", 3), job, 1);
  EXPECT_EQ(dynamic_cast<FakeStep&>(dynamic_cast<FusedExecutor&>(*state.executor).device_step()).adopted, "chosen");
}

TEST(DeviceStepSeam, names_what_a_checkpoint_lacks_before_it_changes_anything) {
  TrainingRuns runs;
  FusedExecutor executor(runs.job(), std::make_unique<FakeStep>(runs.job()));
  checkpoint::CheckpointPart part;
  executor.save(part);
  checkpoint::CheckpointContents contents = checkpoint::contents_of(part);
  contents.optimizer.erase("optimizer.exp_avg_sq.model.norm.weight");
  DeviceStep& step = executor.device_step();
  const torch::Tensor before = step.read(DeviceStep::Part::kMaster, 0).clone();
  for (auto& [name, value] : contents.optimizer)
    if (name.rfind("master.", 0) == 0) value = value + 1;
  try {
    const checkpoint::ContentsSource source(contents);
    executor.restore({contents.facts, source, contents.rank_tensors}, true);
    FAIL() << "a tensor was missing";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("optimizer.exp_avg_sq.model.norm.weight"), std::string::npos);
  }
  EXPECT_TRUE(torch::equal(before, step.read(DeviceStep::Part::kMaster, 0)));
}

TEST(DeviceStepChoice, says_the_first_reason_for_the_general_path) {
  const torch::Device gpu(torch::kCUDA, 0);
  TrainingRuns runs(gpu);
  const spec::Job good = runs.job();
  EXPECT_EQ(reason_for_general_path(plan::run_of(good, one_rank(good)), gpu), std::nullopt);
  EXPECT_EQ(reason_for_general_path(plan::run_of(good, one_rank(good)), torch::kCPU), "the device is not a GPU");
  const auto reason = [&](const std::function<void(spec::Job&, plan::Layout&)>& change) {
    spec::Job job = good;
    plan::Layout layout;
    change(job, layout);
    layout.precision = job.precision;
    return reason_for_general_path(plan::run_of(job, layout), gpu).value_or("");
  };
  EXPECT_EQ(reason([](auto&, auto& layout) { layout.dp = 2; }), "the layout has 2 ranks");
  EXPECT_EQ(reason([](auto& job, auto&) { job.model.arch = spec::Arch::kGpt; }), "the model is not a dense Llama");
  EXPECT_EQ(reason([](auto& job, auto&) { job.model.dropout = 0.1; }), "the model has dropout");
  EXPECT_EQ(reason([](auto& job, auto&) { job.lora.rank = 8; }), "the job trains LoRA adapters");
  EXPECT_EQ(reason([](auto& job, auto&) { job.optimizer.kind = spec::OptimizerKind::kSgd; }),
            "the optimizer is not AdamW");
  EXPECT_EQ(reason([](auto& job, auto&) { job.precision = spec::Precision::kFp32; }), "the precision is fp32");
  EXPECT_EQ(reason([](auto& job, auto&) { job.precision = spec::Precision::kFp8; }), "");
  EXPECT_EQ(reason([](auto&, auto& layout) { layout.offload = plan::Offload::kOptimizer; }),
            "the job offloads to host memory");
}

TEST(DeviceStepChoice, narrow_optimizer_states_without_such_a_step_are_refused) {
  TrainingRuns runs;
  spec::Job job = runs.job();
  job.optimizer.state_precision = spec::Precision::kBf16;
  EXPECT_THROW(runs.run(job, {}), UserError);
}

TEST(DeviceStepChoice, fp8_without_such_a_step_is_refused_with_the_reason) {
  TrainingRuns runs;
  spec::Job job = runs.job();
  job.precision = spec::Precision::kFp8;
  try {
    runs.run(job, {});
    FAIL() << "fp8 ran on a CPU";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("the device is not a GPU"), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace lockstep::engine
