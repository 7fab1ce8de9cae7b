#include "lockstep/report/canvas/chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/report/canvas/lettering.h"

namespace lockstep::report {
namespace {

constexpr double kGap = 4;
constexpr double kWidestTick = 54;

double widest(const std::vector<Tick>& ticks) {
  double width = 0;
  for (const Tick& tick : ticks) width = std::max(width, text_width(tick.label, Typeface::kRegular, kTickSize));
  return width;
}

Box frame_within(const Box& outer, const ChartLabels& labels, const std::vector<Tick>& y_ticks) {
  const double left = widest(y_ticks) + kGap + (labels.y.empty() ? 2 : kLabelSize + 6);
  const double top = labels.title.empty() ? 5 : kTitleSize + 9;
  const double bottom = kTickSize + 5 + (labels.x.empty() ? 0 : kLabelSize + 4);
  return {outer.x + left, outer.y + top, std::max(20.0, outer.width - left - 8),
          std::max(20.0, outer.height - top - bottom)};
}

}  // namespace

Chart::Chart(Canvas& canvas, const Box& outer, const ChartLabels& labels, Axes axes)
    : canvas_(canvas), x_(axes.x), y_(axes.y) {
  if (axes.y_ticks.empty()) axes.y_ticks = round_ticks(y_, std::clamp(static_cast<int>(outer.height / 40), 2, 7));
  frame_ = frame_within(outer, labels, axes.y_ticks);
  if (axes.x_ticks.empty()) axes.x_ticks = round_ticks(x_, std::clamp(static_cast<int>(frame_.width / 50), 2, 9));
  draw_grid(axes);
  draw_labels(labels, outer);
}

void Chart::draw_grid(const Axes& axes) {
  for (const Tick& tick : axes.y_ticks) {
    const double y = at(x_.low, tick.at).y;
    if (y < frame_.y - 0.5 || y > frame_.bottom() + 0.5) continue;
    draw_line(canvas_, {frame_.x, y}, {frame_.right(), y}, {Tint::kGrid, 0.5});
    canvas_.text({frame_.x - kGap, y + kTickSize * 0.35}, tick.label,
                 {Typeface::kRegular, kTickSize, Tint::kMuted, Anchor::kEnd});
  }
  double free_from = -1e9;  // labels that would overlap the previous one are omitted
  for (const Tick& tick : axes.x_ticks) {
    const double x = at(tick.at, y_.low).x;
    if (x < frame_.x - 0.5 || x > frame_.right() + 0.5) continue;
    draw_line(canvas_, {x, frame_.bottom()}, {x, frame_.bottom() + 2.5}, {Tint::kMuted, 0.5});
    const std::string label = fitted(tick.label, Typeface::kRegular, kTickSize, kWidestTick);
    const double half = text_width(label, Typeface::kRegular, kTickSize) / 2;
    if (x - half < free_from) continue;
    canvas_.text({x, frame_.bottom() + kTickSize + 3}, label,
                 {Typeface::kRegular, kTickSize, Tint::kMuted, Anchor::kMiddle});
    free_from = x + half + 3;
  }
  draw_line(canvas_, {frame_.x, frame_.bottom()}, {frame_.right(), frame_.bottom()}, {Tint::kMuted, 0.75});
}

void Chart::draw_labels(const ChartLabels& labels, const Box& outer) {
  if (!labels.title.empty()) {
    canvas_.text({outer.x, outer.y + kTitleSize}, fitted(labels.title, Typeface::kBold, kTitleSize, outer.width),
                 {Typeface::kBold, kTitleSize});
  }
  if (!labels.x.empty()) {
    canvas_.text({frame_.x + frame_.width / 2, frame_.bottom() + kTickSize + 5 + kLabelSize},
                 fitted(labels.x, Typeface::kRegular, kLabelSize, frame_.width),
                 {Typeface::kRegular, kLabelSize, Tint::kMuted, Anchor::kMiddle});
  }
  if (!labels.y.empty()) {
    canvas_.text({outer.x + kLabelSize, frame_.y + frame_.height / 2},
                 fitted(labels.y, Typeface::kRegular, kLabelSize, frame_.height + 20),
                 {Typeface::kRegular, kLabelSize, Tint::kMuted, Anchor::kMiddle, 90});
  }
}

Position Chart::at(double x, double y) const {
  return {frame_.x + x_.share(x) * frame_.width, frame_.bottom() - y_.share(y) * frame_.height};
}

bool Chart::inside(double x, double y) const {
  const Position p = at(x, y);
  return std::isfinite(p.x) && std::isfinite(p.y) && p.x >= frame_.x - 1 && p.x <= frame_.right() + 1 &&
         p.y >= frame_.y - 1 && p.y <= frame_.bottom() + 1;
}

void Chart::stage(double from, double to, const std::string& name, bool strong) {
  const double left = std::clamp(at(from, y_.low).x, frame_.x, frame_.right());
  const double right = std::clamp(at(to, y_.low).x, frame_.x, frame_.right());
  if (right <= left) return;
  const HoverTitle title(canvas_, name);
  canvas_.rectangle({left, frame_.y, right - left, frame_.height},
                    {strong ? Tint::kShadeStrong : Tint::kShade, {}, 0.7});
  const std::string shown = fitted(name, Typeface::kRegular, kTickSize, right - left - 4);
  if (shown.size() > 3)
    canvas_.text({left + 3, frame_.y + kTickSize + 2}, shown, {Typeface::kRegular, kTickSize, Tint::kMuted});
}

void Chart::line(std::span<const Position> points, const Stroke& stroke) {
  std::vector<Position> run;
  for (const Position& point : points) {
    if (inside(point.x, point.y)) {
      run.push_back(at(point.x, point.y));
    } else {
      canvas_.line(run, stroke);
      run.clear();
    }
  }
  canvas_.line(run, stroke);
}

void Chart::steps(std::span<const Position> points, double until, const Stroke& stroke) {
  std::vector<Position> corners;
  for (std::size_t i = 0; i < points.size(); ++i) {
    corners.push_back(points[i]);
    corners.push_back({i + 1 < points.size() ? points[i + 1].x : until, points[i].y});
  }
  line(corners, stroke);
}

void Chart::band(std::span<const Slice> slices, Tint tint) {
  std::vector<Position> corners;
  const auto clamped = [&](double x, double y) {
    Position p = at(x, y);
    p.y = std::clamp(p.y, frame_.y, frame_.bottom());
    return p;
  };
  for (const Slice& slice : slices)
    if (std::isfinite(slice.low) && std::isfinite(slice.high)) corners.push_back(clamped(slice.x, slice.high));
  for (auto slice = slices.rbegin(); slice != slices.rend(); ++slice)
    if (std::isfinite(slice->low) && std::isfinite(slice->high)) corners.push_back(clamped(slice->x, slice->low));
  canvas_.area(corners, {tint, {}, 0.55});
}

void Chart::dot(double x, double y, double radius, const Shape& shape, const std::string& hover) {
  if (!inside(x, y)) return;
  const HoverTitle title(canvas_, hover);
  canvas_.circle(at(x, y), radius, shape);
}

void Chart::cross(double x, double y, double radius, Tint tint, const std::string& hover) {
  if (!inside(x, y)) return;
  const HoverTitle title(canvas_, hover);
  const Position p = at(x, y);
  draw_line(canvas_, {p.x - radius, p.y - radius}, {p.x + radius, p.y + radius}, {tint, 1});
  draw_line(canvas_, {p.x - radius, p.y + radius}, {p.x + radius, p.y - radius}, {tint, 1});
}

void Chart::whisker(double x, double low, double high, const Stroke& stroke) {
  const double clamped_low = std::clamp(low, y_.low, y_.high), clamped_high = std::clamp(high, y_.low, y_.high);
  if (!inside(x, clamped_low) || !inside(x, clamped_high)) return;
  const Position bottom = at(x, clamped_low), top = at(x, clamped_high);
  draw_line(canvas_, bottom, top, stroke);
  draw_line(canvas_, {bottom.x - 2, bottom.y}, {bottom.x + 2, bottom.y}, stroke);
  draw_line(canvas_, {top.x - 2, top.y}, {top.x + 2, top.y}, stroke);
}

void Chart::rule(double y, const Stroke& stroke, const std::string& hover) {
  if (!inside(x_.low, y)) return;
  const HoverTitle title(canvas_, hover);
  draw_line(canvas_, at(x_.low, y), at(x_.high, y), stroke);
}

}  // namespace lockstep::report
