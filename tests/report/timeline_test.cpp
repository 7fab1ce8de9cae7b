#include "lockstep/report/terminal/timeline.h"

#include <gtest/gtest.h>

#include "lockstep/base/text.h"

namespace lockstep::report {
namespace {

using plan::Schedule;

constexpr TerminalStyle kPlain{.width = 80, .colour = false, .unicode = false};

// Forward 1, input gradient 1, weight gradient 1 second per chunk.
std::vector<plan::PlayedTask> played(Schedule schedule, int stages, int chunks, int micro_batches) {
  const plan::PipelineSchedule table = plan::make_pipeline_schedule(schedule, stages, chunks, micro_batches);
  return plan::play(table, std::vector<plan::TaskSeconds>(static_cast<std::size_t>(table.positions()), {1, 1, 1, 0}));
}

TEST(Timeline, draws_the_textbook_picture_of_1f1b) {
  EXPECT_EQ(draw_timeline(played(Schedule::kOneForwardOneBackward, 2, 1, 3), 2, 12, 8, kPlain),
            "  stage  0 12..aa3bb.cc\n"
            "  stage  1 .1aa2bb3cc..\n");
}

TEST(Timeline, draws_weight_gradients_where_a_zero_bubble_rank_would_wait) {
  EXPECT_EQ(draw_timeline(played(Schedule::kZeroBubble, 2, 1, 3), 2, 10, 8, kPlain),
            "  stage  0 12.aw3bwcw\n"
            "  stage  1 .1a2bw3cww\n");
}

TEST(Timeline, draws_the_v_that_two_chunks_make) {
  // Both chunks of the last rank follow each other; the first rank ends the model.
  EXPECT_EQ(draw_timeline(played(Schedule::kZeroBubble, 2, 2, 2), 2, 13, 8, kPlain),
            "  stage  0 12.1a2bawbwww\n"
            "  stage  1 .1122aabbwwww\n");
}

TEST(Timeline, leaves_out_the_middle_of_a_long_pipeline) {
  const auto lines = split(draw_timeline(played(Schedule::kOneForwardOneBackward, 32, 1, 4), 32, 60, 8, kPlain), '\n');
  ASSERT_EQ(lines.size(), 10u);  // 4 + "..." + 4, "" after the last newline
  EXPECT_EQ(lines[3].substr(0, 10), "  stage  3");
  EXPECT_EQ(lines[5].substr(0, 10), "  stage 28");
}

}  // namespace
}  // namespace lockstep::report
