// A run goes on under another layout: the same samples, and losses that are equal to round-off. Ranks are threads.
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/checkpoint/saver.h"
#include "lockstep/engine/run_checkpoints.h"
#include "lockstep/engine/training_step.h"
#include "lockstep/nn/torch_compat.h"
#include "tests/engine/fake_step.h"
#include "tests/engine/training_run.h"

namespace lockstep::engine {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t kSaved = 3, kSteps = 6;

struct Told {
  std::vector<double> losses;  // by step
  std::vector<data::Position> positions;
  std::uint64_t bytes_read = 0, memory_bytes = 0, checkpoint_bytes = 0;
};

struct World {
  std::string layout;
  DeviceStepMaker make_step = make_device_step;
  std::int64_t global_batch = 24;
};

spec::Job job_for(const spec::Job& given, const plan::Layout& layout, std::int64_t global_batch) {
  spec::Job job = given;
  job.batch.accumulation = layout.pp > 1 ? 2 : 1;
  job.batch.micro = global_batch / (layout.data_ranks() * job.batch.accumulation);
  return job;
}

void run_rank(const spec::Job& job, const plan::Run& run, const World& how, const fs::path& directory,
              comm::Communicator world, Told& told) {
  nn::compat::set_compute_threads(1);
  TrainingState state = build_training_state(job, run, world, {.make_step = how.make_step});
  const fs::path saved = directory / "step-00000003";
  if (fs::exists(saved)) {
    const auto reader = checkpoint::CheckpointReader::open(saved);
    reader.prefer(world.rank());
    const checkpoint::CheckpointFacts facts = reader.facts(world.rank());
    const checkpoint::TensorMap own = reader.rank_tensors(world.rank());
    restore(state, SavedState{facts, reader, own}, job, world.size());
    if (world.rank() == 0) {
      told.bytes_read = reader.bytes_read();
      told.memory_bytes = reader.memory_bytes();
      told.checkpoint_bytes = reader.info().bytes;
    }
  }
  const bool saves = state.step == 0;
  while (state.step < kSteps) {
    const StepResult result = run_step(state, {});
    if (world.rank() == 0) {
      told.losses.push_back(result.loss);
      told.positions.push_back(state.position);
    }
    if (!saves || state.step != kSaved) continue;
    save_checkpoint(checkpoint_part(state, job, world.size()),
                    {.directory = directory, .rank = world.rank(), .world = world.size(), .session = "test"},
                    [&](const checkpoint::SaveProgress& own) { return sum_progress(world, own); });
  }
  world.barrier().wait();
}

Told train(const spec::Job& given, const World& how, const fs::path& directory) {
  plan::Layout layout = plan::parse_layout(how.layout);
  layout.precision = given.precision;
  const spec::Job job = job_for(given, layout, how.global_batch);
  spec::Job here = job;
  here.cluster = {};  // the ranks are threads of this process
  const plan::Run run = plan::run_of(here, layout);
  const int ranks = static_cast<int>(layout.world());
  comm::LocalWorld world(ranks, comm::milliseconds{120'000});
  Told told;
  std::mutex mutex;
  std::string problem;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, communicator = world.communicator(rank)]() mutable {
      try {
        run_rank(job, run, how, directory, std::move(communicator), told);
      } catch (const std::exception& error) {
        const std::lock_guard lock(mutex);
        if (problem.empty()) problem = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(problem, "") << how.layout;
  return told;
}

void expect_goes_on(const spec::Job& job, const fs::path& directory, const World& from, const World& to,
                    double tolerance) {
  const Told whole = train(job, from, directory);
  ASSERT_EQ(whole.losses.size(), static_cast<std::size_t>(kSteps));
  EXPECT_TRUE(checkpoint::verify_checkpoint(directory / "step-00000003").empty());
  const Told second = train(job, to, directory);
  ASSERT_EQ(second.losses.size(), static_cast<std::size_t>(kSteps - kSaved));
  for (std::size_t i = 0; i < second.losses.size(); ++i) {
    EXPECT_NEAR(second.losses[i], whole.losses[kSaved + i], tolerance) << "step " << kSaved + i + 1;
    EXPECT_EQ(second.positions[i], whole.positions[kSaved + i]) << "step " << kSaved + i + 1;
  }
  EXPECT_GT(second.bytes_read, 0u);
  double largest = 0.0;
  for (std::size_t i = 0; i < second.losses.size(); ++i) {
    largest = std::max(largest, std::abs(second.losses[i] - whole.losses[kSaved + i]));
  }
  fmt::print("{} to {}: losses within {:.1e}; rank 0 read {} of {} bytes, with at most {} beside the state\n",
             from.layout, to.layout, largest, second.bytes_read, second.checkpoint_bytes, second.memory_bytes);
}

struct Pair {
  const char* model;
  const char* from;
  const char* to;
};

class Reshard : public ::testing::TestWithParam<Pair> {};

spec::Job small_job(const TrainingRuns& runs, const std::string& model) {
  const std::string more = "batch: {micro: 4, sequence_length: 16}\nsteps: 6\n";
  const std::string sizes = "layers: 4, hidden: 16, heads: 4, ffn_hidden: 32, vocab: 256, max_sequence: 16";
  const bool experts = model == "moe";
  spec::Job job = runs.job(more, fmt::format("{{arch: {}, name: tiny, {}{}}}", model, sizes,
                                             experts ? ", experts: 4, experts_per_token: 2" : ""));
  job.precision = spec::Precision::kFp64;
  return job;
}

TEST_P(Reshard, goes_on_with_the_same_samples_and_losses) {
  const TrainingRuns runs;
  const Pair& pair = GetParam();
  expect_goes_on(small_job(runs, pair.model), runs.folder("checkpoints"), {pair.from}, {pair.to}, 1e-9);
}

INSTANTIATE_TEST_SUITE_P(Layouts, Reshard,
                         ::testing::Values(Pair{"llama", "shard=4,zero=3", "tp=2,pp=2"},            //
                                           Pair{"llama", "tp=2,pp=2", "shard=4,zero=3"},            //
                                           Pair{"llama", "dp=4", "dp=3"},                           //
                                           Pair{"llama", "dp=2", "dp=6"},                           //
                                           Pair{"moe", "dp=4,ep=4", "dp=2,ep=2"},                   //
                                           Pair{"moe", "shard=2,zero=3,ep=2", "dp=4,ep=4"},         //
                                           Pair{"llama", "tp=4", "dp=1"},                           //
                                           Pair{"llama", "dp=1", "tp=4"},                           //
                                           Pair{"llama", "pp=4", "pp=2,dp=2"},                      //
                                           Pair{"llama", "cp=2,dp=2", "dp=4"},                      //
                                           Pair{"llama", "shard=4,zero=1", "shard=2,zero=2"},       //
                                           Pair{"llama", "shard=2,zero=2", "shard=3,zero=3"},       //
                                           Pair{"llama", "dp=1", "shard=6,zero=3"},                 //
                                           Pair{"gpt", "pp=2,dp=2", "tp=2,shard=2,zero=1"},         //
                                           Pair{"gpt", "tp=2,dp=2", "pp=2,virtual_stages=2"},       //
                                           Pair{"llama", "pp=2,tp=2,dp=2", "dp=2,shard=2,zero=3"},  //
                                           Pair{"llama", "shard=2,zero=3,cp=2", "tp=2,dp=3"}),
                         [](const auto& pair) {
                           std::string name =
                               std::string(pair.param.model) + "_" + pair.param.from + "_to_" + pair.param.to;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
                           return name;
                         });

// What a fused step saves on one device goes on sharded, and the other way round.
TEST(ReshardedState, the_fused_steps_state_goes_on_in_shards) {
  const TrainingRuns runs;
  spec::Job job = small_job(runs, "llama");
  job.precision = spec::Precision::kBf16;
  expect_goes_on(job, runs.folder("fused"), {"dp=1", fake}, {"shard=4,zero=3"}, 5e-3);
  expect_goes_on(job, runs.folder("general"), {"shard=4,zero=3"}, {"dp=1", fake}, 5e-3);
}

TEST(ReshardedState, adapters_go_on_beside_frozen_weights) {
  const TrainingRuns runs;
  spec::Job job = small_job(runs, "llama");
  job.precision = spec::Precision::kBf16;
  job.lora.rank = 2;
  job.lora.targets = {"q_proj", "v_proj"};
  expect_goes_on(job, runs.folder("adapters"), {"dp=2"}, {"shard=2,zero=3"}, 5e-3);
}

// tests/checkpoint/format-1 was written by version 0.1 on two ranks, with the losses below.
TEST(ReshardedState, a_checkpoint_of_format_1_goes_on_under_any_layout) {
  const TrainingRuns runs;
  spec::Job job = runs.job("batch: {micro: 4, sequence_length: 16}\nsteps: 6\n",
                           "{arch: llama, name: tiny, layers: 1, hidden: 8, heads: 2, ffn_hidden: 16, vocab: 256, "
                           "max_sequence: 16}");
  job.precision = spec::Precision::kFp32;
  const fs::path directory = fs::path(LOCKSTEP_SOURCE_DIR) / "tests/checkpoint/format-1";
  EXPECT_TRUE(checkpoint::verify_checkpoint(directory / "step-00000003").empty());
  constexpr double kLosses[] = {5.495173215866089, 5.470242738723755, 5.467474937438965};
  for (const char* layout : {"dp=2", "dp=1", "shard=4,zero=3", "tp=2,dp=2"}) {
    const Told told = train(job, {.layout = layout, .global_batch = 8}, directory);
    ASSERT_EQ(told.losses.size(), 3u) << layout;
    for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(told.losses[i], kLosses[i], 1e-5) << layout << ", step " << i + 4;
  }
}

// The same layout goes on bit by bit.
TEST(ReshardedState, an_unchanged_layout_goes_on_bit_by_bit) {
  const TrainingRuns runs;
  spec::Job job = small_job(runs, "llama");
  job.precision = spec::Precision::kFp32;
  expect_goes_on(job, runs.folder("same"), {"shard=2,zero=3,tp=2"}, {"shard=2,zero=3,tp=2"}, 0.0);
}

}  // namespace
}  // namespace lockstep::engine
