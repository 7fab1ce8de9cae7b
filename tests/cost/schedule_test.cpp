// The closed forms of idle time against the tables of plan/pipeline_schedule.h, played.
#include "lockstep/cost/schedule.h"

#include <gtest/gtest.h>

#include <random>

#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::cost {
namespace {

using plan::Schedule;

struct Form {
  Schedule schedule;
  int chunks;
};
constexpr Form kForms[]{{Schedule::kGpipe, 1},       {Schedule::kOneForwardOneBackward, 1},
                        {Schedule::kInterleaved, 2}, {Schedule::kInterleaved, 3},
                        {Schedule::kZeroBubble, 1},  {Schedule::kZeroBubble, 2}};
constexpr double kTimes[]{0.5, 0.8, 1, 1.3, 2};

// Idle seconds of rank `slowest` in the played table; stages[r] are the seconds of rank r, all its chunks together.
double played_bubble(const Form& form, int micro_batches, const std::vector<PassSeconds>& stages, int slowest) {
  const plan::PipelineSchedule table =
      plan::make_pipeline_schedule(form.schedule, static_cast<int>(stages.size()), form.chunks, micro_batches);
  std::vector<plan::TaskSeconds> seconds;
  for (int position = 0; position < table.positions(); ++position) {
    const PassSeconds& stage = stages[static_cast<std::size_t>(table.rank_of(position))];
    seconds.push_back({.forward = stage.forward / form.chunks,
                       .backward_input = stage.input_gradient / form.chunks,
                       .backward_weight = stage.weight_gradient / form.chunks});
  }
  return plan::idle_seconds(plan::play(table, seconds), slowest);
}

double closed_bubble(const Form& form, int micro_batches, const std::vector<PassSeconds>& stages, int slowest) {
  PassSeconds others;
  for (std::size_t i = 0; i < stages.size(); ++i) {
    if (static_cast<int>(i) != slowest) others += stages[i];
  }
  return bubble_seconds(form.schedule, static_cast<std::int64_t>(stages.size()), form.chunks, micro_batches, others);
}

enum class Claim { kExact, kAtMost, kEstimate };

Claim claim_of(const Form& form, int stages, int micro_batches, const PassSeconds& each) {
  if (form.schedule == Schedule::kInterleaved && micro_batches > stages && micro_batches % stages != 0) {
    return Claim::kAtMost;
  }
  const bool alike = each.forward == each.input_gradient && each.forward == each.weight_gradient;
  const bool v = form.schedule == Schedule::kZeroBubble && form.chunks == 2;
  return v && micro_batches < stages && !alike ? Claim::kEstimate : Claim::kExact;
}

void compare(const Form& form, int stages, int micro_batches, const PassSeconds& each) {
  const std::vector<PassSeconds> equal(static_cast<std::size_t>(stages), each);
  const double busy = micro_batches * each.total();
  const double played = busy + played_bubble(form, micro_batches, equal, 0);
  const double closed = busy + closed_bubble(form, micro_batches, equal, 0);
  const Claim claim = claim_of(form, stages, micro_batches, each);
  const double below = claim == Claim::kEstimate ? 0.8 : 1, above = claim == Claim::kEstimate ? 1.25 : 1;
  const bool agrees = closed > (below - 1e-9) * played && (claim == Claim::kAtMost || closed < (above + 1e-9) * played);
  ASSERT_TRUE(agrees) << plan::to_string(form.schedule) << " x " << form.chunks << ", " << stages << " stages, "
                      << micro_batches << " micro-batches of " << each.forward << " + " << each.input_gradient << " + "
                      << each.weight_gradient << ": played " << played << ", closed form " << closed;
}

TEST(ScheduleFormulas, are_the_papers) {
  const PassSeconds others{3, 3, 3};  // of 4 stages with F = B = W = 1
  EXPECT_EQ(bubble_seconds(Schedule::kNone, 1, 1, 8, {}), 0);
  EXPECT_EQ(bubble_seconds(Schedule::kOneForwardOneBackward, 4, 1, 8, others), 9);  // (p-1)(F + B + W)
  EXPECT_EQ(bubble_seconds(Schedule::kInterleaved, 4, 3, 8, others), 3);            // / v
  EXPECT_EQ(bubble_seconds(Schedule::kZeroBubble, 4, 1, 8, others), 3);             // (p-1)(F + B - W)
  EXPECT_EQ(bubble_seconds(Schedule::kZeroBubble, 4, 2, 8, others), 1.5);           // p-1 forwards of half a stage
}

TEST(ScheduleFormulas, are_what_the_tables_give_up_to_16_stages_and_64_micro_batches) {
  for (const Form& form : kForms) {
    for (int stages = 1; stages <= 16; ++stages) {
      for (int micro = 1; micro <= 64; ++micro) ASSERT_NO_FATAL_FAILURE(compare(form, stages, micro, {1, 1, 1}));
    }
  }
}

TEST(ScheduleFormulas, are_what_the_tables_give_for_passes_of_any_length) {
  for (const Form& form : kForms) {
    for (const int stages : {2, 3, 5, 8}) {
      for (const int micro : {1, 2, 3, 5, 7, 8, 9, 16, 24, 40}) {
        for (const double forward : kTimes) {
          for (const double input : kTimes) {
            for (const double weight : kTimes) {
              ASSERT_NO_FATAL_FAILURE(compare(form, stages, micro, {forward, input, weight}));
            }
          }
        }
      }
    }
  }
}

// The step is what a plan is judged by: stages up to a quarter apart, as uneven layers and the head make them.
TEST(ScheduleFormulas, price_the_step_of_unequal_stages_up_to_a_tenth_too_high_and_never_too_low) {
  std::mt19937 random(1);
  std::uniform_real_distribution<double> layers(0.8, 1.0);
  for (const Form& form : kForms) {
    for (int trial = 0; trial < 200; ++trial) {
      const int stages = 2 + static_cast<int>(random() % 7), micro = stages * (2 + static_cast<int>(random() % 6));
      std::vector<PassSeconds> unequal;
      for (int i = 0; i < stages; ++i) {
        const double n = layers(random);
        unequal.push_back({n, 1.1 * n, 0.9 * n});
      }
      int slowest = 0;
      for (int i = 0; i < stages; ++i) {
        if (unequal[static_cast<std::size_t>(i)].total() > unequal[static_cast<std::size_t>(slowest)].total())
          slowest = i;
      }
      const double busy = micro * unequal[static_cast<std::size_t>(slowest)].total();
      const double played = busy + played_bubble(form, micro, unequal, slowest);
      const double closed = busy + closed_bubble(form, micro, unequal, slowest);
      const std::string name = std::string(plan::to_string(form.schedule)) + " x " + std::to_string(form.chunks) +
                               ", " + std::to_string(stages) + " stages, " + std::to_string(micro);
      EXPECT_GE(closed / played, 1 - 1e-9) << name;
      EXPECT_LE(closed / played, 1.1) << name;
    }
  }
}

TEST(ScheduleFormulas, zero_bubble_idles_less_than_1f1b_and_in_a_v_least) {
  const PassSeconds others{7, 7, 7};
  const double plain = bubble_seconds(Schedule::kOneForwardOneBackward, 8, 1, 32, others);
  const double line = bubble_seconds(Schedule::kZeroBubble, 8, 1, 32, others);
  const double v = bubble_seconds(Schedule::kZeroBubble, 8, 2, 32, others);
  EXPECT_LT(line, plain);
  EXPECT_LT(v, line);
}

}  // namespace
}  // namespace lockstep::cost
