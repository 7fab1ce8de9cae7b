#include "lockstep/sim/replay.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::sim {
namespace {

TEST(Replay, operations_begin_when_what_they_wait_for_has_ended) {
  Replay replay;
  for (int i = 0; i < 4; ++i) replay.add();
  replay.after(1, 0);
  replay.after(3, 1);
  replay.after(3, 2);
  EXPECT_EQ(replay.ends(std::vector<double>{1.0, 2.0, 5.0, 1.0}), (std::vector<double>{1.0, 3.0, 5.0, 6.0}));
  EXPECT_EQ(replay.length(std::vector<double>{1.0, 5.0, 5.0, 1.0}), 7.0);
}

TEST(Replay, those_that_go_together_begin_when_all_can) {
  Replay replay;
  for (int i = 0; i < 4; ++i) replay.add();
  replay.after(2, 0);
  replay.after(3, 1);
  replay.together(2, 3);
  EXPECT_EQ(replay.ends(std::vector<double>{1.0, 4.0, 0.5, 0.25}), (std::vector<double>{1.0, 4.0, 4.5, 4.25}));
}

TEST(Replay, pauses_come_after_what_an_operation_waits_for) {
  Replay replay;
  for (int i = 0; i < 4; ++i) replay.add();
  replay.after(2, 0);
  replay.after(3, 1);
  replay.together(2, 3);
  const std::vector<double> seconds = {1.0, 2.0, 0.5, 0.5}, pauses = {0.25, 0.0, 3.0, 1.0};
  // 2 is ready 3 s after 1.25, 3 one second after 2.
  EXPECT_EQ(replay.ends(seconds, pauses), (std::vector<double>{1.25, 2.0, 4.75, 4.75}));
  EXPECT_EQ(replay.length(seconds, std::vector<double>(4, 0.0)), replay.length(seconds));
  EXPECT_EQ(replay.released(std::vector<double>{1.25, 2.0, 4.75, 4.75}, -1.0),
            (std::vector<double>{-1.0, -1.0, 1.25, 2.0}));
}

TEST(Replay, a_circle_is_an_error_not_a_hang) {
  Replay replay;
  replay.add();
  replay.add();
  replay.after(0, 1);
  replay.after(1, 0);
  EXPECT_THROW(replay.ends(std::vector<double>{1.0, 1.0}), UserError);
}

TEST(Replay, of_nothing_takes_no_time) { EXPECT_EQ(Replay().length({}), 0.0); }

}  // namespace
}  // namespace lockstep::sim
