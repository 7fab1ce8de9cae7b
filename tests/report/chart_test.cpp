#include "lockstep/report/canvas/chart.h"

#include <gtest/gtest.h>

#include <cmath>

#include "lockstep/report/canvas/svg_canvas.h"

namespace lockstep::report {
namespace {

std::string labels(const Scale& scale, int wanted) {
  std::string text;
  for (const Tick& tick : round_ticks(scale, wanted)) text += tick.label + " ";
  return text;
}

TEST(Ticks, AreRoundNumbers) {
  EXPECT_EQ(labels({0, 100}, 5), "0 20 40 60 80 100 ");
  EXPECT_EQ(labels({41300, 52000}, 4), "45k 50k ");
  EXPECT_EQ(labels({-1, 1}, 4), "-1 -0.5 0 0.5 1 ");
  EXPECT_EQ(labels({0, 0.003}, 3), "0 0.001 0.002 0.003 ");
}

TEST(Ticks, OnLogarithmicScalesArePowers) {
  EXPECT_EQ(labels({1, 256, true}, 9), "1 2 4 8 16 32 64 128 256 ");
  EXPECT_EQ(labels({1, 256, true}, 4), "1 4 16 64 256 ");
  EXPECT_EQ(labels({1, 1e6, true}, 9), "1 10 100 1k 10k 100k 1M ");
}

TEST(Scales, AreNeverEmptyWhateverComes) {
  for (const double low : {0.0, 1.0, -5.0, 1e-300, 1e300, std::nan(""), double{INFINITY}}) {
    for (const double high : {0.0, 1.0, 1e12, -3.0, std::nan("")}) {
      for (const bool log : {false, true}) {
        const Scale scale = round_scale(low, high, log);
        EXPECT_LT(scale.low, scale.high) << low << " " << high << " " << log;
        EXPECT_LE(round_ticks(scale, 5).size(), 100u);
      }
    }
  }
}

TEST(Numbers, AreShort) {
  EXPECT_EQ(short_number(51234), "51.23k");
  EXPECT_EQ(short_number(999.999), "1k");
  EXPECT_EQ(short_number(0.25), "0.25");
  EXPECT_EQ(short_number(0), "0");
  EXPECT_EQ(short_number(-2e6), "-2M");
  EXPECT_EQ(short_number(std::nan("")), "-");
}

TEST(Charts, LeaveOutWhatIsNotFinite) {
  SvgCanvas canvas(200, 100);
  Chart chart(canvas, {0, 0, 200, 100}, {"t", "x", "y"}, {{0, 1}, {0, 1}, {}, {}});
  const std::vector<Position> points{{0, 0.5}, {0.5, std::nan("")}, {1, 0.5}, {1, INFINITY}};
  chart.line(points, {});
  chart.dot(std::nan(""), 0, 2, {Tint::kText}, "");
  chart.whisker(0.5, -INFINITY, INFINITY, {});
  const std::vector<Chart::Slice> slices{{0, 0, 1}, {1, std::nan(""), 1}};
  chart.band(slices, Tint::kAccentSoft);
  draw_bars(canvas, {0, 0, 200, 100}, "t", "%", {{"a", std::nan(""), -INFINITY, INFINITY}, {"b", 1, 0, 2}});
  EXPECT_EQ(canvas.inline_svg("x").find("nan"), std::string::npos);
  EXPECT_EQ(canvas.inline_svg("x").find("inf"), std::string::npos);
}

TEST(Charts, RampStepsAreDistinctAndGetDarker) {
  double before = 256;
  for (int i = 0; i < kRampSteps; ++i) {
    const Rgb colour = on_light(ramp((i + 0.5) / kRampSteps));
    const double grey = 0.299 * colour.red + 0.587 * colour.green + 0.114 * colour.blue;
    EXPECT_LT(grey, before - 8) << i;
    before = grey;
  }
}

}  // namespace
}  // namespace lockstep::report
