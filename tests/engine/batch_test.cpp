// The samples of a step do not depend on the ranks: any number of them, phases, and runs that go on with another
// number. Ranks are threads.
#include <gtest/gtest.h>

#include <mutex>
#include <thread>

#include "lockstep/engine/kept_batch.h"
#include "lockstep/engine/training_step.h"
#include "lockstep/nn/torch_compat.h"
#include "tests/engine/training_run.h"

namespace lockstep::engine {
namespace {

struct Told {
  std::vector<double> losses;
  std::vector<data::Position> positions;
  std::int64_t total_steps = 0;
};

class Batches : public ::testing::Test {
 protected:
  // A job of four layers in fp64; `batch` and the goal in YAML.
  spec::Job job(const std::string& batch, const std::string& goal = "steps: 5") const {
    const char* model =
        "{arch: llama, name: tiny, layers: 4, hidden: 16, heads: 4, ffn_hidden: 32, vocab: 256, "
        "max_sequence: 16}";
    spec::Job made = runs_.job(fmt::format("batch: {{sequence_length: 16, {}}}\n{}\n", batch, goal), model);
    made.precision = spec::Precision::kFp64;
    return made;
  }

  // Steps until `until` (0: all), from `start` where it is given; what the state was comes back in `end`.
  Told train(const spec::Job& job, const std::string& text, std::int64_t until = 0,
             const checkpoint::CheckpointContents* start = nullptr, checkpoint::CheckpointContents* end = nullptr) {
    plan::Layout layout = plan::parse_layout(text);
    layout.precision = job.precision;
    spec::Job here = job;
    here.cluster = {};  // the ranks are threads of this process
    plan::Run run = plan::run_of(here, layout);
    const KeptBatch kept = keep_batch(job, run, start != nullptr ? saved_batch_of(start->facts) : std::nullopt);
    plan::set_schedule(run, kept.schedule);
    const int ranks = static_cast<int>(layout.world());
    comm::LocalWorld world(ranks, comm::milliseconds{120'000});
    Told told;
    std::mutex mutex;
    std::string problem;
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank, communicator = world.communicator(rank)]() mutable {
        try {
          nn::compat::set_compute_threads(1);
          TrainingState state = build_training_state(job, run, communicator,
                                                     {.batch_ranks = kept.data_ranks, .rate_factor = kept.rate_factor});
          if (start != nullptr) restore(state, *start, job, ranks);
          if (rank == 0) told.total_steps = state.total_steps;
          while (state.step < (until > 0 ? until : state.total_steps)) {
            const StepResult result = run_step(state, {});
            if (rank != 0) continue;
            told.losses.push_back(result.loss);
            told.positions.push_back(state.position);
          }
          if (end != nullptr && rank == 0) *end = checkpoint::contents_of(held_part(state, job, ranks));
          communicator.barrier().wait();
        } catch (const std::exception& error) {
          const std::lock_guard lock(mutex);
          if (problem.empty()) problem = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(problem, "") << text;
    return told;
  }

  static void expect_same(const Told& got, const Told& wanted, std::size_t first, const std::string& what) {
    ASSERT_FALSE(got.losses.empty()) << what;
    ASSERT_EQ(got.losses.size() + first, wanted.losses.size()) << what;
    for (std::size_t i = 0; i < got.losses.size(); ++i) {
      EXPECT_NEAR(got.losses[i], wanted.losses[first + i], 1e-9) << what << ", step " << first + i + 1;
      EXPECT_EQ(got.positions[i], wanted.positions[first + i]) << what << ", step " << first + i + 1;
    }
  }

  TrainingRuns runs_;
};

TEST_F(Batches, four_samples_a_step_train_alike_on_one_three_and_four_ranks) {
  const spec::Job one_each = job("micro: 1, global: 4");
  const Told four = train(one_each, "dp=4");
  for (const char* layout : {"dp=1", "dp=3", "shard=3,zero=3", "shard=3,zero=2", "dp=3,pp=2", "dp=3,tp=2"}) {
    expect_same(train(one_each, layout), four, 0, layout);
  }
}

TEST_F(Batches, a_warm_up_in_steps_and_tokens_trains_alike_on_every_layout) {
  const spec::Job warm = job(
      "micro: 1, global: 8, schedule: [{until: 2 steps, global: 2}, {until: 192 tokens, global: 4}]", "tokens: 700");
  const Told one = train(warm, "dp=1");
  // 2 + 2 + 4 + 4 samples are 192 tokens; 44 samples are 700: four more steps of 8.
  EXPECT_EQ(one.total_steps, 8);
  EXPECT_EQ(one.positions[3].samples, 12);
  EXPECT_EQ(one.positions[4].samples, 20);
  for (const char* layout : {"dp=3", "dp=2,pp=2", "shard=2,zero=3"}) expect_same(train(warm, layout), one, 0, layout);
}

TEST_F(Batches, a_run_on_fewer_ranks_keeps_the_samples_of_its_steps) {
  const spec::Job given = job("micro: 1, accumulation: 1");
  const Told whole = train(given, "dp=4");
  checkpoint::CheckpointContents saved;
  train(given, "dp=4", 2, nullptr, &saved);
  expect_same(train(given, "dp=3", 0, &saved), whole, 2, "4 to 3 ranks");
  // And again: what was kept is not forgotten.
  checkpoint::CheckpointContents smaller;
  train(given, "dp=3", 3, &saved, &smaller);
  expect_same(train(given, "dp=3", 0, &smaller), whole, 3, "3 ranks again");
  expect_same(train(given, "dp=4", 0, &smaller), whole, 3, "grown back to 4 ranks");
}

TEST_F(Batches, a_run_in_the_middle_of_a_phase_goes_on_with_it_on_other_ranks) {
  const spec::Job given =
      job("micro: 1, accumulation: 2, schedule: [{until: 4 steps, accumulation: 1}]", "epochs: 0.05");
  const Told whole = train(given, "dp=4");
  EXPECT_EQ(whole.positions[3].samples, 16);
  EXPECT_EQ(whole.positions[4].samples, 24);
  for (const std::int64_t step : {2, 4, 5}) {
    checkpoint::CheckpointContents saved;
    train(given, "dp=4", step, nullptr, &saved);
    const Told rest = train(given, "dp=3", 0, &saved);
    EXPECT_EQ(rest.total_steps, whole.total_steps);
    expect_same(rest, whole, static_cast<std::size_t>(step), fmt::format("from step {}", step));
  }
}

TEST_F(Batches, a_scaled_batch_scales_the_learning_rate_by_its_rule) {
  const SavedBatch saved{spec::BatchSchedule::constant(16), 4, 0.5};
  plan::Layout layout = plan::parse_layout("dp=2");
  layout.precision = spec::Precision::kFp64;
  for (const auto& [rule, factor] : {std::pair{"linear", 0.25}, {"sqrt", 0.5 * std::sqrt(0.5)}, {"none", 0.5}}) {
    const spec::Job given =
        job(fmt::format("micro: 2, accumulation: 2, on_resize: scale, learning_rate_rule: {}", rule));
    const KeptBatch kept = keep_batch(given, plan::run_of(given, layout), saved);
    EXPECT_EQ(kept.schedule, spec::BatchSchedule::constant(8)) << rule;
    EXPECT_DOUBLE_EQ(kept.rate_factor, factor) << rule;
    EXPECT_EQ(kept.data_ranks, 2) << rule;
  }
  const spec::Job keeps = job("micro: 2, accumulation: 2");
  const KeptBatch kept = keep_batch(keeps, plan::run_of(keeps, layout), saved);
  EXPECT_EQ(kept.schedule, saved.schedule);
  EXPECT_EQ(kept.data_ranks, 4);
  EXPECT_DOUBLE_EQ(kept.rate_factor, 0.5);
}

}  // namespace
}  // namespace lockstep::engine
