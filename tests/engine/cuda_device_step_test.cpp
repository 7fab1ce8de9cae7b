// The fused CUDA step against the general path on the same GPU and against fp32 on the CPU: gradients, losses, every
// kind of model it takes, and checkpoints that go from one path to the other. Without a GPU there is nothing to
// compare.
#include <gtest/gtest.h>
#include <torch/autograd.h>

#include <cmath>

#include "lockstep/engine/fused/step.h"
#include "lockstep/engine/fused_executor.h"
#include "lockstep/nn/model.h"
#include "lockstep/nn/torch_compat.h"
#include "lockstep/spec/model.h"
#include "tests/engine/training_run.h"

namespace lockstep::engine {
namespace {

const std::string kPlain =
    "{arch: llama, name: plain, layers: 2, hidden: 128, heads: 4, ffn_hidden: 256, vocab: 256, max_sequence: 128}";
const std::string kGrouped =
    "{arch: llama, name: grouped, layers: 2, hidden: 256, heads: 4, kv_heads: 1, ffn_hidden: 256, vocab: 256, "
    "max_sequence: 128}";
const std::string kTied =
    "{arch: llama, name: tied, layers: 2, hidden: 128, heads: 2, ffn_hidden: 256, vocab: 256, max_sequence: 128, "
    "tied_embeddings: true}";
const std::string kStretched =
    "{arch: llama, name: stretched, layers: 2, hidden: 256, heads: 4, kv_heads: 2, ffn_hidden: 384, vocab: 256, "
    "max_sequence: 128, tied_embeddings: true, rope_theta: 500000, rope_scaling: {kind: llama3, factor: 8, "
    "low_freq_factor: 1, high_freq_factor: 4, original_max_sequence: 32}}";

DeviceStepChoice general(const spec::Job&, const plan::Run&, torch::Device) { return {nullptr, "the test says so"}; }

std::string twenty(const std::string& batch) {
  return "batch: " + batch + "\nsteps: 20\ncheckpoint: {every_steps: 10}\nevaluation: {every: 10, batches: 3}\n";
}
const std::string kBatch = "{micro: 8, sequence_length: 128}";

class CudaDeviceStep : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!nn::compat::has_cuda()) GTEST_SKIP() << "no GPU here";
    runs = std::make_unique<TrainingRuns>(torch::Device(torch::kCUDA, 0));
  }

  static void expect_close(const std::vector<double>& a, const std::vector<double>& b, double relative) {
    ASSERT_EQ(a.size(), b.size());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], relative * b[i]) << "step " << i;
  }
  void expect_both_paths_agree(const std::string& model, plan::Recompute recompute = plan::Recompute::kNone) {
    const spec::Job job = runs->job(twenty(kBatch), model);
    const TrainingRun fused = runs->run(job, {.recompute = recompute});
    ASSERT_NE(fused.notes.at(1).find("fused CUDA step"), std::string::npos) << fused.notes.at(1);
    const TrainingRun other = runs->run(job, {.make_step = general, .recompute = recompute});
    ASSERT_EQ(other.notes.at(1), "step: general path, because the test says so");
    expect_close(fused.losses, other.losses, 0.01);
    EXPECT_LT(fused.losses.back(), 0.8 * fused.losses.front());  // it learns
    ASSERT_EQ(fused.evaluations.size(), other.evaluations.size());
    for (std::size_t i = 0; i < fused.evaluations.size(); ++i) {
      const auto &mine = fused.evaluations[i], &theirs = other.evaluations[i];
      EXPECT_EQ(mine.at("targets"), theirs.at("targets"));
      EXPECT_NEAR(mine.at("loss").get<double>(), theirs.at("loss").get<double>(),
                  0.01 * theirs.at("loss").get<double>());
      EXPECT_NEAR(mine.at("accuracy").get<double>(), theirs.at("accuracy").get<double>(), 0.02);
    }
  }

  std::unique_ptr<TrainingRuns> runs;
};

TEST_F(CudaDeviceStep, loses_as_the_general_path_does) { expect_both_paths_agree(kPlain); }
TEST_F(CudaDeviceStep, grouped_queries_lose_as_in_the_general_path) { expect_both_paths_agree(kGrouped); }
TEST_F(CudaDeviceStep, tied_embeddings_lose_as_in_the_general_path) { expect_both_paths_agree(kTied); }
TEST_F(CudaDeviceStep, stretched_rope_loses_as_in_the_general_path) { expect_both_paths_agree(kStretched); }
TEST_F(CudaDeviceStep, recomputing_loses_as_in_the_general_path) {
  expect_both_paths_agree(kTied, plan::Recompute::kSelective);
  expect_both_paths_agree(kGrouped, plan::Recompute::kFull);
}

TEST_F(CudaDeviceStep, micro_batches_accumulate_to_the_step_of_the_whole_batch) {
  const TrainingRun whole = runs->run(runs->job(twenty("{micro: 8, sequence_length: 128}"), kGrouped), {});
  const TrainingRun halves =
      runs->run(runs->job(twenty("{micro: 4, accumulation: 2, sequence_length: 128}"), kGrouped), {});
  expect_close(halves.losses, whole.losses, 0.005);
}

TEST_F(CudaDeviceStep, short_batches_weigh_every_target_alike) {
  std::ofstream(runs->text()) << made_text(128 * 22);
  const spec::Job job = runs->job("batch: {micro: 4, accumulation: 2, sequence_length: 128}\nepochs: 2\n", kPlain);
  const TrainingRun fused = runs->run(job, {});
  expect_close(fused.losses, runs->run(job, {.make_step = general}).losses, 0.01);
}

TEST_F(CudaDeviceStep, goes_on_from_a_checkpoint_bit_by_bit) {
  for (const std::string& model : {kPlain, kStretched}) {
    const spec::Job job = runs->job(twenty("{micro: 4, accumulation: 2, sequence_length: 128}"), model);
    const std::string whole = job.model.name + "-whole", parts = job.model.name + "-parts";
    runs->run(job, {.checkpoints = whole});
    runs->run(job, {.checkpoints = parts, .resume_from = runs->checkpoint(whole, 10)});
    EXPECT_EQ(difference(runs->contents(whole, 20), runs->contents(parts, 20)), "") << model;
  }
}

TEST_F(CudaDeviceStep, checkpoints_go_from_one_path_to_the_other) {
  const spec::Job job = runs->job(twenty(kBatch), kStretched);
  const TrainingRun fused = runs->run(job, {.checkpoints = "fused"});
  const TrainingRun other = runs->run(job, {.make_step = general, .checkpoints = "general"});
  const TrainingRun a = runs->run(job, {.checkpoints = "a", .resume_from = runs->checkpoint("general", 10)});
  const TrainingRun b =
      runs->run(job, {.make_step = general, .checkpoints = "b", .resume_from = runs->checkpoint("fused", 10)});
  expect_close(a.losses, std::vector<double>(other.losses.begin() + 10, other.losses.end()), 0.01);
  expect_close(b.losses, std::vector<double>(fused.losses.begin() + 10, fused.losses.end()), 0.01);
}

TEST_F(CudaDeviceStep, what_it_saves_is_on_the_cpu_what_it_was) {
  const spec::Job job = runs->job(twenty(kBatch), kTied);
  runs->run(job, {.checkpoints = "gpu"});
  const auto saved = runs->contents("gpu", 20);
  comm::LocalWorld world(1);
  comm::Communicator communicator = world.communicator(0);
  TrainingState state = build_training_state(job, plan::run_of(job, one_rank(job)), communicator);
  restore(state, saved, job, 1);
  EXPECT_EQ(difference(saved, checkpoint_contents(state, job, 1)), "");
}

// One step's gradients of the fused step against fp32 autograd on the CPU, from weights that bf16 holds.
void expect_gradients_agree(const std::string& model_text, cuda::Recompute recompute, std::int64_t accumulation) {
  const spec::Model model = TrainingRuns().job({}, model_text).model;
  const auto drawn = nn::build_model(model, {.dtype = torch::kBFloat16, .seed = 3});
  const auto reference = nn::build_model(model, {.dtype = torch::kFloat32, .seed = 3});
  cuda::FusedOptions options;
  options.micro_batch = 4;
  options.sequence_length = 128;
  options.accumulation = accumulation;
  options.recompute = recompute;
  cuda::FusedStep step(model, options);
  {
    const torch::NoGradGuard no_grad;
    const auto values = drawn->named_parameters();
    for (auto& entry : reference->named_parameters()) entry.value().copy_(values[entry.key()]);
  }
  for (const cuda::NamedParameter& p : step.parameters()) {
    const torch::Tensor value = reference->named_parameters()[p.name].detach().contiguous();
    ASSERT_EQ(value.numel(), p.place.count());
    step.load(p, value.data_ptr<float>());
  }
  const std::int64_t samples = 4 * accumulation;
  const torch::Tensor place = torch::arange(samples * 129).view({samples, 129});
  const torch::Tensor text = (place * place * 31 + place * 17).remainder(1009).remainder(model.vocab);
  const torch::Tensor input = text.narrow(1, 0, 128).contiguous();
  torch::Tensor target = text.narrow(1, 1, 128).clone();
  target.masked_fill_((input + target).remainder(11) == 3, -100);
  target.narrow(0, 0, 1).fill_(-100);  // uneven over micro-batches

  const nn::LossResult result = reference->loss(input, target, {});
  (result.loss_sum / static_cast<double>(result.count)).backward();
  const torch::Tensor tokens = input.to(torch::kInt32), targets = target.to(torch::kInt32);
  const auto done = step.step(tokens.data_ptr<std::int32_t>(), targets.data_ptr<std::int32_t>(), 0.0);
  const double loss = result.loss_sum.item<double>() / static_cast<double>(result.count);
  EXPECT_NEAR(done.loss, loss, 2e-3 * loss);
  for (const cuda::NamedParameter& p : step.parameters()) {
    const std::vector<float> got = step.save_gradient(p.name);
    const torch::Tensor want = reference->named_parameters()[p.name].grad().reshape({-1});
    const torch::Tensor mine = torch::from_blob(const_cast<float*>(got.data()), {want.numel()}, torch::kFloat32);
    EXPECT_LT((mine - want).norm().item<double>(), 0.03 * want.norm().item<double>()) << p.name;
  }
}

TEST_F(CudaDeviceStep, gradients_are_those_of_fp32_autograd) {
  for (const std::string& model : {kPlain, kGrouped, kTied, kStretched}) {
    SCOPED_TRACE(model);
    expect_gradients_agree(model, cuda::Recompute::kNone, 1);
    expect_gradients_agree(model, cuda::Recompute::kSelective, 2);
    expect_gradients_agree(model, cuda::Recompute::kFull, 2);
  }
}

TEST_F(CudaDeviceStep, a_gradient_that_is_not_finite_changes_nothing) {
  const spec::Job job = runs->job(twenty(kBatch), kPlain);
  DeviceStepChoice choice = make_device_step(job, plan::run_of(job, one_rank(job)), torch::Device(torch::kCUDA, 0));
  ASSERT_TRUE(choice.step) << choice.why_not;
  load_initial_values(*choice.step, job);
  data::Batch batch;
  batch.input = torch::arange(8 * 128).view({8, 128}).remainder(256);
  batch.target = batch.input.clone();
  batch.samples = batch.global_samples = 8;
  choice.step->submit({batch}, 1e-3);
  EXPECT_FALSE(choice.step->wait().skipped);
  EXPECT_EQ(choice.step->updates(), 1);
  torch::Tensor broken = choice.step->read(DeviceStep::Part::kMaster, 0).clone();
  broken.view({-1})[0] = std::nan("");
  choice.step->write(DeviceStep::Part::kMaster, 0, broken);
  const torch::Tensor before = choice.step->read(DeviceStep::Part::kMaster, 1).clone();
  const torch::Tensor mean = choice.step->read(DeviceStep::Part::kFirstMoment, 1).cpu();
  choice.step->submit({batch}, 1e-3);
  EXPECT_TRUE(choice.step->wait().skipped);
  EXPECT_EQ(choice.step->updates(), 1);
  EXPECT_TRUE(torch::equal(before, choice.step->read(DeviceStep::Part::kMaster, 1)));
  EXPECT_TRUE(torch::equal(mean, choice.step->read(DeviceStep::Part::kFirstMoment, 1).cpu()));
}

TEST_F(CudaDeviceStep, narrow_optimizer_states_follow_wide_ones_and_come_back) {
  spec::Job job = runs->job(twenty(kBatch), kGrouped);
  const TrainingRun wide = runs->run(job, {});
  job.optimizer.state_precision = spec::Precision::kBf16;
  const TrainingRun narrow = runs->run(job, {.checkpoints = "narrow"});
  expect_close(narrow.losses, wide.losses, 0.02);
  EXPECT_EQ(runs->contents("narrow", 20).optimizer.at("optimizer.exp_avg.model.norm.weight").scalar_type(),
            torch::kBFloat16);
  runs->run(job, {.checkpoints = "again", .resume_from = runs->checkpoint("narrow", 10)});
  EXPECT_EQ(difference(runs->contents("narrow", 20), runs->contents("again", 20)), "");
}

TEST_F(CudaDeviceStep, fp8_follows_bf16) {
  spec::Job job = runs->job(twenty(kBatch), kGrouped);
  job.optimizer.learning_rate = 5e-4;  // where losses fall fast, small differences of weights are large ones of losses
  const TrainingRun bf16 = runs->run(job, {});
  job.precision = spec::Precision::kFp8;
  expect_close(runs->run(job, {}).losses, bf16.losses, 0.03);
}

}  // namespace
}  // namespace lockstep::engine
