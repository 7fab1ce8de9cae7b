#include "lockstep/report/terminal/draw.h"

#include <gtest/gtest.h>

#include "lockstep/base/text.h"
#include "lockstep/telemetry/progress.h"

namespace lockstep::report {
namespace {

constexpr TerminalStyle kPlainAscii{.width = 80, .colour = false, .unicode = false};

TEST(Draw, a_bar_shows_its_parts_to_scale) {
  EXPECT_EQ(stacked_bar({{2, 'P', Ink::kBlue}, {4, 'A', Ink::kGreen}}, 10, 10, kPlainAscii), "PPAAAA....");
}

TEST(Draw, a_bar_that_overflows_marks_where_the_whole_ends) {
  const std::string bar = stacked_bar({{6, 'P', Ink::kBlue}, {14, 'A', Ink::kGreen}}, 10, 20, kPlainAscii);
  EXPECT_EQ(bar, "PPPPPPAAAA|AAAAAAAAA");
}

TEST(Draw, bars_keep_their_width_whatever_they_show) {
  for (const bool colour : {false, true}) {
    for (const bool unicode : {false, true}) {
      const TerminalStyle style{.width = 80, .colour = colour, .unicode = unicode};
      for (const double value : {0.0, 1e-9, 3.3, 9.99, 10.0, 25.0}) {
        EXPECT_EQ(telemetry::display_width(stacked_bar({{value, 'P', Ink::kRed}}, 10, 33, style)), 33);
        EXPECT_EQ(telemetry::display_width(placed_bar(value, 1.0, 30, 33, Ink::kRed, style)), 33);
      }
    }
  }
}

TEST(Draw, a_small_part_still_gets_a_cell_of_its_own_row) {
  EXPECT_EQ(placed_bar(5, 0.001, 10, 10, Ink::kRed, kPlainAscii), ".....#....");
  EXPECT_EQ(placed_bar(10, 0.001, 10, 10, Ink::kRed, kPlainAscii), ".........#");
  EXPECT_EQ(placed_bar(5, 0, 10, 10, Ink::kRed, kPlainAscii), "..........");
}

TEST(Draw, colour_only_where_the_style_has_it) {
  EXPECT_EQ(inked("x", Ink::kRed, kPlainAscii), "x");
  EXPECT_EQ(inked("x", Ink::kRed, {.colour = true}), "\033[31mx\033[0m");
}

TEST(Draw, a_table_lines_its_columns_up) {
  const std::string text = table({{"name", "figure"}, {"a", "1"}, {"longer", "1000"}}, {1}, 2, kPlainAscii);
  EXPECT_EQ(text, "  name    figure\n  a            1\n  longer    1000\n");
}

TEST(Draw, wrapped_text_keeps_to_the_width_and_loses_no_word) {
  const std::string words = "one two three four five six seven eight nine ten eleven twelve";
  const std::string text = wrapped("  - ", words, 24);
  std::vector<std::string> pieces;
  for (const std::string& line : split(text, '\n')) {
    EXPECT_LE(line.size(), 24u);
    if (!line.empty()) pieces.push_back(line.substr(4));
  }
  EXPECT_EQ(join(pieces, " "), words);
}

}  // namespace
}  // namespace lockstep::report
