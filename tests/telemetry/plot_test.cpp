#include "lockstep/telemetry/plot.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/telemetry/progress.h"

namespace lockstep::telemetry {
namespace {

Curve falling() {
  Curve curve{"loss", {}};
  for (int i = 0; i <= 100; ++i) curve.points.emplace_back(i, 5.0 - 0.04 * i);
  return curve;
}

TEST(Plot, draws_a_falling_curve_from_the_upper_left_to_the_lower_right) {
  const std::string text = plot({falling()}, {.width = 40, .height = 6, .unicode = false});
  const auto lines = split(text, '\n');
  ASSERT_EQ(lines.size(), 8u);  // 6 rows, the x axis, "" after the last newline
  EXPECT_EQ(lines[0].substr(0, 2), "5 ");
  const std::size_t left = lines[0].find('|') + 1;
  EXPECT_EQ(lines[0][left], '*');
  EXPECT_EQ(lines[5].back(), '*');
  EXPECT_EQ(lines[5][left], ' ');
  EXPECT_NE(lines[6].find("step"), std::string::npos);
  for (const auto& line : lines) EXPECT_LE(line.size(), 40u);
}

TEST(Plot, keeps_to_its_width_in_braille) {
  for (const int width : {20, 41, 80, 133}) {
    for (const auto& line : split(plot({falling()}, {.width = width}), '\n')) EXPECT_LE(display_width(line), width);
  }
}

TEST(Plot, copes_with_nothing_one_point_flat_lines_and_nan) {
  EXPECT_EQ(plot({}), "");
  EXPECT_EQ(plot({{"a", {}}}), "");
  EXPECT_EQ(plot({{"a", {{1, NAN}, {INFINITY, 2}}}}), "");
  EXPECT_NE(plot({{"a", {{1, 2}}}}), "");
  EXPECT_NE(plot({{"a", {{1, 0}, {2, 0}, {3, NAN}, {4, 0}}}}), "");
}

TEST(Sparkline, shows_low_and_high) {
  EXPECT_EQ(sparkline({0, 1, 2, 3, 4, 5, 6, 7}, 8), "▁▂▃▄▅▆▇█");
  EXPECT_EQ(sparkline({0, 0, 7, 7}, 2), "▁█");
  EXPECT_EQ(sparkline({0, NAN, 7}, 3), "▁ █");
  EXPECT_EQ(sparkline({}, 10), "");
}

}  // namespace
}  // namespace lockstep::telemetry
