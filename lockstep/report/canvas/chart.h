// Charts on a Canvas: axes with round ticks, marks, bars with intervals, parallel coordinates. Pure drawing; what is
// not finite is omitted.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/report/canvas/canvas.h"

namespace lockstep::report {

struct Scale {
  double low = 0;
  double high = 1;
  bool log = false;                  // then both ends are positive
  double share(double value) const;  // 0 at low, 1 at high; beyond them outside
};

// From `low` to `high`, widened to round numbers and never empty. With `log` only positive values count.
Scale round_scale(double low, double high, bool log = false);

struct Tick {
  double at = 0;
  std::string label;
};

// About `wanted` round values within the scale: multiples of 1, 2 or 5 times a power of ten; on logarithmic scales
// powers (of 2 when the scale is short), or multiples when it spans less than a decade.
std::vector<Tick> round_ticks(const Scale& scale, int wanted);

// Three significant digits at most and no more than needed: "1.2k", "35", "0.25", "12M".
std::string short_number(double value);

struct ChartLabels {
  std::string title;
  std::string x;
  std::string y;
};

// One frame with two scales. Construction draws title, grid, ticks and labels; the members draw into it.
class Chart {
 public:
  struct Axes {
    Scale x, y;
    std::vector<Tick> x_ticks;  // empty: round ones
    std::vector<Tick> y_ticks;
  };
  Chart(Canvas& canvas, const Box& outer, const ChartLabels& labels, Axes axes);

  Position at(double x, double y) const;
  const Box& frame() const { return frame_; }

  // Between `from` and `to` over the whole height, named at the top. Draw it before the marks.
  void stage(double from, double to, const std::string& name, bool strong);
  void line(std::span<const Position> points, const Stroke& stroke);
  // Holds each value until the next x, and the last until `until`.
  void steps(std::span<const Position> points, double until, const Stroke& stroke);
  struct Slice {
    double x, low, high;
  };
  void band(std::span<const Slice> slices, Tint tint);
  void dot(double x, double y, double radius, const Shape& shape, const std::string& hover);
  void cross(double x, double y, double radius, Tint tint, const std::string& hover);
  void whisker(double x, double low, double high, const Stroke& stroke);
  // Across the frame at height y.
  void rule(double y, const Stroke& stroke, const std::string& hover);

 private:
  void draw_grid(const Axes& axes);
  void draw_labels(const ChartLabels& labels, const Box& outer);
  bool inside(double x, double y) const;

  Canvas& canvas_;
  Box frame_;
  Scale x_, y_;
};

// A key in one row below or above a chart: marks with their meaning.
struct KeyEntry {
  enum class Mark { kDot, kRing, kCross, kLine, kDash, kBand } mark = Mark::kDot;
  Tint tint = Tint::kText;
  std::string meaning;
};
void draw_key(Canvas& canvas, Position at, double width, const std::vector<KeyEntry>& entries);

// Horizontal bars, one row each, with whiskers from low to high.
struct Bar {
  std::string label;
  double value = 0, low = 0, high = 0;
  bool has_interval = true;
  Tint tint = Tint::kAccent;
  std::string figure;  // printed at the right: "12.3 (10 to 14)"
  std::string hover;
};
void draw_bars(Canvas& canvas, const Box& outer, const std::string& title, const std::string& unit,
               const std::vector<Bar>& bars);
double bars_height(std::size_t bars, bool titled = true);  // that draw_bars() wants

// One vertical axis per dimension; a path is a share in [0, 1] per axis, NaN where it has none.
struct ParallelAxis {
  std::string name;
  std::vector<Tick> ticks;  // at: share
};
struct ParallelPath {
  std::vector<double> shares;
  Stroke stroke;
  double weight = 1;  // drawn in ascending order
  std::string hover;
};
void draw_parallel(Canvas& canvas, const Box& outer, const std::vector<ParallelAxis>& axes,
                   std::vector<ParallelPath> paths);

}  // namespace lockstep::report
