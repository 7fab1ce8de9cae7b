#include "lockstep/report/timeline.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "lockstep/base/text.h"
#include "lockstep/cost/schedule.h"

namespace lockstep::report {
namespace {

using plan::Schedule;

constexpr double kForward = 1, kBackward = 2;

PipelineQuestion even(Schedule schedule, int stages, int micro_batches, int chunks = 1) {
  return {.schedule = schedule,
          .chunks = chunks,
          .micro_batches = micro_batches,
          .stages = std::vector<StageSeconds>(stages, {.forward = kForward, .backward = kBackward, .send = 0})};
}

double end_of(const std::vector<PipelineTask>& tasks) {
  double end = 0;
  for (const PipelineTask& task : tasks) end = std::max(end, task.end);
  return end;
}

std::vector<PipelineQuestion> all_kinds() {
  std::vector<PipelineQuestion> questions;
  for (const int stages : {1, 2, 4, 7}) {
    for (const int micro : {1, 3, 8}) {
      for (const Schedule schedule : {Schedule::kGpipe, Schedule::kOneForwardOneBackward, Schedule::kZeroBubble}) {
        questions.push_back(even(schedule, stages, micro));
      }
      questions.push_back(even(Schedule::kInterleaved, stages, micro * stages, 3));
      questions.push_back(even(Schedule::kZeroBubble, stages, micro, 2));
    }
  }
  return questions;
}

TEST(Timeline, a_stage_does_one_thing_at_a_time_and_all_of_its_work) {
  for (const PipelineQuestion& question : all_kinds()) {
    const auto tasks = play_pipeline(question);
    std::map<int, double> free, busy;
    for (const PipelineTask& task : tasks) {
      EXPECT_GE(task.start, free[task.stage] - 1e-12);
      free[task.stage] = task.end;
      busy[task.stage] += task.end - task.start;
    }
    for (const auto& [stage, seconds] : busy) {
      EXPECT_NEAR(seconds, question.micro_batches * (kForward + kBackward), 1e-9);
    }
  }
}

TEST(Timeline, no_stage_works_on_what_has_not_arrived) {
  PipelineQuestion question = even(Schedule::kInterleaved, 4, 8, 2);
  for (StageSeconds& stage : question.stages) stage.send = 0.25;
  std::map<std::pair<int, int>, double> forward, backward;  // (micro-batch, stage in model order) -> end
  const auto tasks = play_pipeline(question);
  const auto place = [](const PipelineTask& task) { return std::pair(task.micro, task.chunk * 4 + task.stage); };
  for (const PipelineTask& task : tasks) {
    (task.kind == TaskKind::kForward ? forward : backward)[place(task)] = task.end;
  }
  for (const PipelineTask& task : tasks) {
    const auto [micro, stage] = place(task);
    if (task.kind == TaskKind::kForward) {
      EXPECT_GE(task.start, stage == 0 ? 0.0 : forward.at({micro, stage - 1}) + 0.25);
    } else {
      EXPECT_GE(task.start, stage == 7 ? 0.0 : backward.at({micro, stage + 1}) + 0.25);
      EXPECT_GE(task.start, forward.at({micro, stage}));
    }
  }
}

TEST(Timeline, idle_time_is_what_the_closed_forms_say) {
  constexpr int kStages = 4, kMicro = 16;
  const double others = (kStages - 1) * (kForward + kBackward);
  for (const auto& [schedule, chunks] : {std::pair(Schedule::kGpipe, 1), std::pair(Schedule::kOneForwardOneBackward, 1),
                                         std::pair(Schedule::kInterleaved, 2), std::pair(Schedule::kInterleaved, 4)}) {
    const double busy = kMicro * (kForward + kBackward);
    const double played = end_of(play_pipeline(even(schedule, kStages, kMicro, chunks))) - busy;
    EXPECT_NEAR(played, cost::bubble_seconds(schedule, chunks, others, 0), 1e-9) << plan::to_string(schedule);
  }
}

TEST(Timeline, zero_bubble_is_shorter_than_1f1b_and_no_shorter_than_its_closed_form) {
  constexpr int kStages = 4, kMicro = 16;
  const double busy = kMicro * (kForward + kBackward);
  const double played = end_of(play_pipeline(even(Schedule::kZeroBubble, kStages, kMicro))) - busy;
  const double one_f_one_b = end_of(play_pipeline(even(Schedule::kOneForwardOneBackward, kStages, kMicro))) - busy;
  EXPECT_LT(played, one_f_one_b);
  const double others = (kStages - 1) * (kForward + kBackward), weights = (kStages - 1) * kBackward / 2;
  EXPECT_GE(played, cost::bubble_seconds(Schedule::kZeroBubble, 1, others, weights) - 1e-9);
}

TEST(Timeline, zero_bubble_in_a_v_idles_less_than_in_a_line) {
  constexpr int kStages = 4, kMicro = 16;
  const double line = idle_share(play_pipeline(even(Schedule::kZeroBubble, kStages, kMicro, 1)), kStages);
  const double v = idle_share(play_pipeline(even(Schedule::kZeroBubble, kStages, kMicro, 2)), kStages);
  EXPECT_LT(v, line);
}

TEST(Timeline, stage_i_of_1f1b_holds_as_many_micro_batches_as_stages_follow_it) {
  constexpr int kStages = 5, kMicro = 12;
  const auto tasks = play_pipeline(even(Schedule::kOneForwardOneBackward, kStages, kMicro));
  for (int stage = 0; stage < kStages; ++stage) {
    int held = 0, most = 0;
    for (const PipelineTask& task : tasks) {
      if (task.stage != stage) continue;
      held += task.kind == TaskKind::kForward ? 1 : -1;
      most = std::max(most, held);
    }
    EXPECT_EQ(most, cost::chunks_in_flight(Schedule::kOneForwardOneBackward, kStages, stage, 1, kMicro));
  }
}

TEST(Timeline, draws_the_textbook_picture_of_1f1b) {
  const DrawStyle plain{.width = 80, .colour = false, .unicode = false};
  const auto tasks = play_pipeline(even(Schedule::kOneForwardOneBackward, 2, 3));
  EXPECT_EQ(draw_timeline(tasks, 2, 12, 8, plain),
            "  stage  0 12..aa3bb.cc\n"
            "  stage  1 .1aa2bb3cc..\n");
}

TEST(Timeline, leaves_out_the_middle_of_a_long_pipeline) {
  const DrawStyle plain{.width = 80, .colour = false, .unicode = false};
  const auto tasks = play_pipeline(even(Schedule::kOneForwardOneBackward, 32, 4));
  const auto lines = split(draw_timeline(tasks, 32, 60, 8, plain), '\n');
  ASSERT_EQ(lines.size(), 10u);  // 4 + "..." + 4, "" after the last newline
  EXPECT_EQ(lines[3].substr(0, 10), "  stage  3");
  EXPECT_EQ(lines[5].substr(0, 10), "  stage 28");
}

TEST(Timeline, idle_share_of_one_stage_is_nothing) {
  EXPECT_NEAR(idle_share(play_pipeline(even(Schedule::kGpipe, 1, 4)), 1), 0, 1e-12);
}

}  // namespace
}  // namespace lockstep::report
