#include "lockstep/spec/batch_schedule.h"

#include <gtest/gtest.h>

namespace lockstep::spec {
namespace {

Batch warm_up() {
  Batch batch{.micro = 2, .accumulation = 4, .sequence_length = 16};
  batch.schedule = {{.until = 3, .unit = BatchUnit::kSteps, .accumulation = 1},
                    {.until = 800, .unit = BatchUnit::kTokens, .global = 6}};
  return batch;
}

TEST(BatchSchedule, every_phase_has_its_samples) {
  const BatchSchedule schedule = batch_schedule(warm_up(), 2, 16);
  EXPECT_EQ(schedule.global_at(0, 0), 4);
  EXPECT_EQ(schedule.global_at(2, 8), 4);
  EXPECT_EQ(schedule.global_at(3, 12), 6);
  EXPECT_EQ(schedule.global_at(9, 49), 6);
  EXPECT_EQ(schedule.global_at(10, 50), 16);  // 800 tokens are 50 samples
  EXPECT_EQ(schedule.final(), 16);
  EXPECT_EQ(schedule.largest(), 16);
  EXPECT_EQ(to_string(schedule), "4 until step 3, then 6 until 50 samples, then 16");
}

TEST(BatchSchedule, micro_steps_keep_every_micro_batch_within_its_size) {
  EXPECT_EQ(micro_steps_of(4, 1, 3), 2);
  EXPECT_EQ(micro_steps_of(4, 1, 4), 1);
  EXPECT_EQ(micro_steps_of(4, 1, 1), 4);
  EXPECT_EQ(micro_steps_of(8, 4, 3), 1);
  EXPECT_EQ(micro_steps_of(13, 4, 3), 2);
  EXPECT_EQ(micro_steps_of(1, 4, 3), 1);
}

// The same by doing the steps one by one.
std::int64_t counted(const BatchSchedule& schedule, std::int64_t epoch, std::int64_t step, std::int64_t samples,
                     std::int64_t wanted) {
  std::int64_t steps = 0;
  while (samples < wanted) {
    samples += std::min(schedule.global_at(step + steps, samples), epoch - samples % epoch);
    ++steps;
  }
  return steps;
}

TEST(BatchSchedule, steps_until_some_samples_are_those_that_one_counts) {
  const BatchSchedule schedules[] = {
      BatchSchedule::constant(7), batch_schedule(warm_up(), 2, 16), {{{5, 0, 2}, {0, 40, 3}, {60, 0, 5}, {0, 0, 11}}}};
  for (const BatchSchedule& schedule : schedules) {
    for (const std::int64_t epoch : {10, 37, 500}) {
      for (const std::int64_t wanted : {0, 1, 36, 200, 1234}) {
        for (const auto& [step, samples] : {std::pair{0, 0}, {4, 9}, {30, 77}}) {
          EXPECT_EQ(steps_until(schedule, epoch, step, samples, wanted),
                    counted(schedule, epoch, step, samples, wanted))
              << to_string(schedule) << ", epoch " << epoch << ", wanted " << wanted << ", step " << step;
        }
      }
    }
  }
}

}  // namespace
}  // namespace lockstep::spec
