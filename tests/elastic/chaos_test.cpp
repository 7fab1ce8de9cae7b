#include "lockstep/elastic/chaos.h"

#include <gtest/gtest.h>

#include "lockstep/base/error.h"

namespace lockstep::elastic {
namespace {

// The one line that refuses `text`.
std::string refusal(const std::string& text) {
  try {
    parse_chaos(text, 4);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    return error.what();
  }
  ADD_FAILURE() << "`" << text << "` was taken";
  return {};
}

void expect_refused(const std::string& text, const std::vector<std::string>& pieces) {
  const std::string line = refusal(text);
  for (const std::string& piece : pieces) EXPECT_NE(line.find(piece), std::string::npos) << line;
}

TEST(Chaos, reads_events_with_their_places) {
  const auto events = parse_chaos("kill rank=2 step=20 in=collective at=3; stop rank=1 for=15s;\n slow rank=0 x3", 4);
  ASSERT_EQ(events.size(), 3U);
  EXPECT_EQ(events[0].kind, ChaosKind::kKill);
  EXPECT_EQ(events[0].rank, 2);
  EXPECT_EQ(events[0].step, 20);
  EXPECT_EQ(events[0].place, ChaosPlace::kCollective);
  EXPECT_EQ(events[0].at, 3);
  EXPECT_EQ(events[1].kind, ChaosKind::kStop);
  EXPECT_EQ(events[1].step, 1);
  EXPECT_EQ(events[1].seconds, 15.0);
  EXPECT_EQ(events[2].factor, 3.0);
  EXPECT_EQ(events[2].number, 2);
}

TEST(Chaos, slows_a_phase_a_link_or_fills_memory) {
  const auto events = parse_chaos(
      "slow rank=2 x1.5 phase=forward; slow rank=1 phase=loader delay=20ms for=5s; slow-link rank=3 rate=50MB/s "
      "delay=1ms; leak rank=0 step=4 size=4MiB",
      4);
  ASSERT_EQ(events.size(), 4U);
  EXPECT_EQ(events[0].phase, ChaosPhase::kForward);
  EXPECT_EQ(events[0].factor, 1.5);
  EXPECT_EQ(events[1].phase, ChaosPhase::kLoader);
  EXPECT_DOUBLE_EQ(events[1].delay_seconds, 0.02);
  EXPECT_EQ(events[2].kind, ChaosKind::kSlowLink);
  EXPECT_DOUBLE_EQ(events[2].bytes_per_second, 50e6);
  EXPECT_DOUBLE_EQ(events[2].delay_seconds, 0.001);
  EXPECT_EQ(events[3].bytes, 4.0 * 1024 * 1024);
  EXPECT_EQ(chaos_events_from_json(to_json(events)), events);
  expect_refused("slow rank=1 phase=forward", {"`slow` lacks `x` or `delay`"});
  expect_refused("slow-link rank=1", {"`slow-link` lacks `rate` or `delay`"});
  expect_refused("slow rank=1 x2 phase=foward", {"did you mean `forward`"});
  expect_refused("leak rank=1", {"`leak` lacks `size`"});
}

TEST(Chaos, of_several_ranks_is_one_event_for_each) {
  const auto events = parse_chaos("kill rank=1,3 step=7", 4);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].text, "kill rank=1 step=7");
  EXPECT_EQ(events[1].rank, 3);
}

TEST(Chaos, without_a_rank_is_the_disk_of_the_first) {
  EXPECT_EQ(parse_chaos("full-disk; corrupt checkpoint; slow-disk for=1s", 4).size(), 3U);
}

TEST(Chaos, kills_a_process_that_waits) { EXPECT_TRUE(parse_chaos("kill standby step=5", 4)[0].standby); }

TEST(Chaos, names_the_column_and_the_nearest_word) {
  expect_refused("kill rank=1; kil rank=2", {"--chaos:1:14", "`kil`", "did you mean `kill`"});
  expect_refused("kill rnak=1", {"--chaos:1:6", "did you mean `rank`"});
  expect_refused("kill rank=1 in=colective", {"--chaos:1:13", "did you mean `collective`"});
}

TEST(Chaos, refuses_what_has_no_meaning) {
  expect_refused("", {"no event"});
  expect_refused(" ; ;", {"no event"});
  expect_refused("kill", {"takes a rank or `standby`"});
  expect_refused("kill rank=4", {"rank 4 is not one of the run's 4", "0 to 3"});
  expect_refused("kill rank=1 rank=2", {"--chaos:1:13", "given already"});
  expect_refused("kill rank=1 step=0", {"below 1"});
  expect_refused("kill rank=1 step=", {"no value"});
  expect_refused("kill rank=one", {"--chaos:1:6"});
  expect_refused("kill rank=1 at=2", {"`at` counts operations"});
  expect_refused("kill standby in=save", {"leave `in` out"});
  expect_refused("stop rank=1", {"lacks `for`", "stop rank=1 step=9 for=15s"});
  expect_refused("stop rank=1 for=15", {"--chaos:1:13"});
  expect_refused("stop rank=1 for=2h", {"out of range"});
  expect_refused("slow rank=1", {"lacks `x`"});
  expect_refused("slow rank=1 x0", {"out of range"});
  expect_refused("nan rank=1 in=save", {"not a word of `nan`"});
}

TEST(Chaos, goes_through_a_message_unchanged) {
  const auto events =
      parse_chaos("segfault rank=1 step=4 in=save at=2; kill standby; hang rank=3 for=2s; slow rank=0 x1.5", 4);
  EXPECT_EQ(chaos_events_from_json(nlohmann::json::parse(to_json(events).dump())), events);
}

TEST(Chaos, help_has_every_kind) {
  for (const char* name : names_of(ChaosKind{})) EXPECT_NE(chaos_help().find(name), std::string::npos);
}

}  // namespace
}  // namespace lockstep::elastic
