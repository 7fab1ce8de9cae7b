#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "lockstep/report/watch/frame.h"
#include "made_up_run.h"

namespace lockstep::report {
namespace {

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

class Watching : public ::testing::Test {
 protected:
  WatchView view() { return read_watch_view(*run_.store(folder_), "last", 160); }
  MadeUpRun run_;
  TemporaryFolder folder_;
};

TEST_F(Watching, fills_exactly_the_screen_in_every_style_and_size) {
  const WatchView now = view();
  for (const ScreenSize size : {ScreenSize{80, 24}, ScreenSize{40, 10}, ScreenSize{200, 60}, ScreenSize{81, 5}}) {
    for (int tab = 0; tab < kWatchTabs; ++tab) {
      for (const TerminalStyle style : {TerminalStyle{80, false, false}, TerminalStyle{80, true, true}}) {
        const auto lines = watch_frame(now, static_cast<WatchTab>(tab), size, style);
        ASSERT_EQ(static_cast<int>(lines.size()), size.rows);
        for (const std::string& line : lines) {
          EXPECT_LE(telemetry::display_width(line), size.columns) << line;
          EXPECT_EQ(line.find('\n'), std::string::npos);
          if (!style.colour) {
            EXPECT_EQ(line.find('\033'), std::string::npos) << line;
          }
          if (!style.unicode) {
            for (const char c : line) EXPECT_GE(c, ' ') << line;
          }
        }
      }
    }
  }
}

TEST_F(Watching, shows_figures_beside_their_prediction) {
  const std::string text = watch_page(view(), WatchTab::kOverview, {100, 40}, {.width = 100});
  for (const char* part : {"made-up", "done", "40", "2.2000", "tokens/s", "predicted", "MFU", "32.0%", "40.0%",
                           "goodput", "rank 3 holds the others up", "loss"}) {
    EXPECT_TRUE(has(text, part)) << part << "\n" << text;
  }
}

TEST_F(Watching, has_a_page_for_each_question) {
  const WatchView now = view();
  const auto page = [&](WatchTab tab) { return watch_page(now, tab, {110, 40}, {.width = 110}); };
  EXPECT_TRUE(has(page(WatchTab::kWaterfall), "kernels below peak"));
  EXPECT_TRUE(has(page(WatchTab::kWaterfall), "USD per day"));
  EXPECT_TRUE(has(page(WatchTab::kRanks), "busy seconds"));
  EXPECT_TRUE(has(page(WatchTab::kRanks), "straggler"));
  EXPECT_TRUE(has(page(WatchTab::kTimeline), "step 40"));
  EXPECT_TRUE(has(page(WatchTab::kTimeline), "FFFF"));
  EXPECT_TRUE(has(page(WatchTab::kTimeline), "www"));
  EXPECT_TRUE(has(page(WatchTab::kTimeline), "RRR"));
  EXPECT_TRUE(has(page(WatchTab::kIncidents), "rank 5 was killed"));
  EXPECT_TRUE(has(page(WatchTab::kIncidents), "5.50 s down"));
  EXPECT_TRUE(has(page(WatchTab::kMemory), "activations"));
  EXPECT_TRUE(has(page(WatchTab::kMemory), "rank 7"));
}

TEST_F(Watching, scrolls_what_is_longer_than_the_screen) {
  for (int i = 0; i < 60; ++i) {
    run_.more.push_back(telemetry::Event{MadeUpRun::kStart + 40 + i * 0.1, telemetry::Level::kWarning, "node_health",
                                         -1, -1, "finding " + std::to_string(i)});
  }
  const WatchView now = view();
  const auto top = watch_frame(now, WatchTab::kIncidents, {80, 24}, {});
  const auto below = watch_frame(now, WatchTab::kIncidents, {80, 24}, {}, 10);
  EXPECT_NE(top[3], below[3]);
  EXPECT_EQ(top[13], below[3]);
  const auto end = watch_frame(now, WatchTab::kIncidents, {80, 24}, {}, 100000);
  EXPECT_TRUE(has(end[22], "checkpoint")) << "no further than the last line";
}

TEST_F(Watching, cannot_be_made_to_send_escapes) {
  const std::string evil = "\033[2J\033]0;owned\a\xff\u202e<b>";
  run_.name = evil;
  run_.id = "20270115-080000-a1b2c3-x";
  run_.more = {telemetry::Event{MadeUpRun::kStart + 40,
                                telemetry::Level::kError,
                                "alert",
                                1,
                                30,
                                evil,
                                {{"rule", evil}, {"state", "firing"}, {"fix", evil}}}};
  const WatchView now = view();
  for (int tab = 0; tab < kWatchTabs; ++tab) {
    for (const std::string& line : watch_frame(now, static_cast<WatchTab>(tab), {100, 40}, {.width = 100})) {
      EXPECT_TRUE(is_printable(line)) << line;
    }
  }
}

TEST_F(Watching, copes_with_runs_that_have_nothing_yet) {
  const auto store = telemetry::make_json_lines_run_store(folder_.path());
  store->write("empty", std::vector<telemetry::Record>{telemetry::RunInfo{.id = "empty", .started_at = 1e9}});
  const WatchView now = read_watch_view(*store, "last", 80);
  for (int tab = 0; tab < kWatchTabs; ++tab) {
    EXPECT_EQ(watch_frame(now, static_cast<WatchTab>(tab), {80, 24}, {}).size(), 24u);
  }
  EXPECT_TRUE(to_json(now).at("loss").is_null());
}

TEST_F(Watching, tells_other_programs_the_same) {
  const nlohmann::json json = to_json(view());
  EXPECT_EQ(json.at("schema"), "lockstep.watch/1");
  EXPECT_EQ(json.at("step"), 40);
  EXPECT_EQ(json.at("straggler"), 3);
  EXPECT_NEAR(json.at("mfu"), 0.32, 1e-9);
  EXPECT_EQ(json.at("incidents"), 1);
}

TEST(Clipping, keeps_colours_closed_and_characters_whole) {
  EXPECT_EQ(clipped("abc", 5), "abc");
  EXPECT_EQ(clipped("abcdef", 3), "abc");
  EXPECT_EQ(clipped("\033[31mabcdef\033[0m", 3), "\033[31mabc\033[0m");
  EXPECT_EQ(clipped("äöü", 2), "äö");
}

}  // namespace
}  // namespace lockstep::report
