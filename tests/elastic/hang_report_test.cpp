// The report of a hang: who is missing, and where everybody is.
#include "lockstep/elastic/hang_report.h"

#include <gtest/gtest.h>

namespace lockstep::elastic {
namespace {

PendingOperation collective(std::int64_t sequence, double seconds, std::vector<int> members = {0, 1, 2, 3}) {
  return {.kind = "all_reduce",
          .group = "world",
          .members = std::move(members),
          .sequence = sequence,
          .bytes = 128,
          .site = "world: norm and loss",
          .seconds = seconds,
          .timeout_seconds = 20.0};
}

PendingOperation receive(int from, double seconds) {
  return {.kind = "recv",
          .group = "pp",
          .members = {0, 1, 2, 3},
          .sequence = 9,
          .bytes = 4096,
          .peer = from,
          .seconds = seconds};
}

void expect_in(const std::string& piece, const std::string& text) {
  EXPECT_NE(text.find(piece), std::string::npos) << piece << "\nin\n" << text;
}

TEST(HangReport, names_the_rank_that_gives_no_sign_of_life) {
  std::vector<RankState> ranks(4);
  for (int rank = 0; rank < 4; ++rank) {
    ranks[rank].rank = rank;
    ranks[rank].step = 11;
    if (rank != 2) ranks[rank].operations = {collective(41, 12.0)};
  }
  ranks[2].silent_seconds = 12.0;
  ranks[2].phase = "forward";
  ranks[2].phase_seconds = 12.5;
  ranks[2].stacks = "thread 77 lockstep: state T, in do_signal_stop\nthread 78 loader: state T\n";
  ranks[0].stacks =
      "thread 70 lockstep: state S\nthread 71 comm: state S\nstack of thread 71:\nother()\n"
      "stack of thread 70:\nhandler()\nsignal()\nwait_until()\n"
      "/usr/lib/liblockstep_engine.so(_ZN8lockstep4comm4Work4waitEv+0x204)[0x7f1473507c44]\n"
      "/usr/lib/liblockstep_engine.so(+0x3d481e)[0x7f14733d481e]\n";
  ranks[1].stacks = ranks[0].stacks;
  const HangReport report = describe_hang("rank 2 gave no sign of life for 12 s", ranks);
  EXPECT_EQ(report.missing, std::vector<int>{2});
  expect_in("rank 2 is missing, the others are in all_reduce #41 of 128 B (world: norm and loss) in group \"world\"",
            report.line);
  expect_in("rank 2: no sign of life for 12 s; last in forward of step 12", report.text);
  expect_in("thread 77 lockstep: state T, in do_signal_stop", report.text);
  expect_in("wait_until()", report.text);
  expect_in("lockstep::comm::Work::wait() in liblockstep_engine.so", report.text);
  expect_in("liblockstep_engine.so+0x3d481e", report.text);
  expect_in("the same stack as rank 0", report.text);
  EXPECT_EQ(report.text.find("other()"), std::string::npos) << report.text;
  EXPECT_EQ(report.data.at("sequence"), 41);
  EXPECT_EQ(report.data.at("group"), "world");
  EXPECT_EQ(report.data.at("ranks").size(), 4U);
}

TEST(HangReport, names_the_rank_that_never_enters_the_collective) {
  std::vector<RankState> ranks(4);
  for (int rank = 0; rank < 4; ++rank) {
    ranks[rank].rank = rank;
    if (rank != 1) ranks[rank].operations = {collective(7, 5.0)};
  }
  ranks[1].phase = "host";
  ranks[1].phase_seconds = 5.0;
  const HangReport report = describe_hang("no step was done in 12 s", ranks);
  EXPECT_EQ(report.missing, std::vector<int>{1});
  expect_in("rank 1: in host of step 0 for 5 s", report.text);
}

TEST(HangReport, follows_a_pipeline_to_the_rank_that_waits_for_nobody) {
  std::vector<RankState> ranks(4);
  for (int rank = 0; rank < 4; ++rank) ranks[rank].rank = rank;
  ranks[3].operations = {receive(2, 9.0)};
  ranks[2].operations = {receive(1, 9.0)};
  ranks[0].operations = {collective(3, 2.0)};
  const HangReport report = describe_hang("no step was done in 12 s", ranks);
  EXPECT_EQ(report.missing, std::vector<int>{1});
}

TEST(HangReport, of_ranks_in_different_collectives_names_those_elsewhere) {
  std::vector<RankState> ranks(4);
  for (int rank = 0; rank < 4; ++rank) {
    ranks[rank].rank = rank;
    ranks[rank].operations = {collective(rank == 3 ? 8 : 7, 5.0)};
  }
  const HangReport report = describe_hang("a timeout", ranks);
  expect_in("all_reduce #7", report.line);
  EXPECT_NE(std::ranges::find(report.missing, 3), report.missing.end());
}

TEST(HangReport, reads_what_a_heartbeat_says_and_nothing_else) {
  EXPECT_TRUE(pending_operations({{"step", 3}}).empty());
  EXPECT_TRUE(pending_operations({{"operations", "x"}}).empty());
  const auto operations = pending_operations(
      {{"operations", {{{"kind", "send"}, {"group", "pp"}, {"members", {0, 1}}, {"sequence", 4}, {"peer", 1}}, 5}}});
  ASSERT_EQ(operations.size(), 1U);
  EXPECT_EQ(operations[0].peer, 1);
  EXPECT_EQ(operations[0].members, (std::vector<int>{0, 1}));
}

}  // namespace
}  // namespace lockstep::elastic
