// Keys, bars and parallel coordinates.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/report/canvas/chart.h"
#include "lockstep/report/canvas/lettering.h"

namespace lockstep::report {
namespace {

constexpr double kRow = 14;
constexpr double kHead = kTitleSize + 10;
constexpr double kNoHead = 3;
constexpr double kFoot = 12;

void draw_mark(Canvas& canvas, Position centre, const KeyEntry& entry) {
  using Mark = KeyEntry::Mark;
  switch (entry.mark) {
    case Mark::kDot:
      canvas.circle(centre, 2.2, {entry.tint, {}, 1});
      break;
    case Mark::kRing:
      canvas.circle(centre, 2.2, {Tint::kPaper, Stroke{entry.tint, 0.9}, 1});
      break;
    case Mark::kCross:
      draw_line(canvas, {centre.x - 2, centre.y - 2}, {centre.x + 2, centre.y + 2}, {entry.tint, 1});
      draw_line(canvas, {centre.x - 2, centre.y + 2}, {centre.x + 2, centre.y - 2}, {entry.tint, 1});
      break;
    case Mark::kLine:
    case Mark::kDash:
      draw_line(canvas, {centre.x - 5, centre.y}, {centre.x + 5, centre.y},
                {entry.tint, 1.2, entry.mark == Mark::kDash});
      break;
    case Mark::kBand:
      canvas.rectangle({centre.x - 5, centre.y - 3, 10, 6}, {entry.tint, {}, 0.55});
      break;
  }
}

Scale bars_scale(const std::vector<Bar>& bars) {
  double low = 0, high = 0;
  for (const Bar& bar : bars) {
    for (const double value :
         {bar.value, bar.has_interval ? bar.low : bar.value, bar.has_interval ? bar.high : bar.value}) {
      if (!std::isfinite(value)) continue;
      low = std::min(low, value), high = std::max(high, value);
    }
  }
  if (high - low < 1) high = low + 1;
  return round_scale(low, high);
}

double widest_label(const std::vector<Bar>& bars, bool figures) {
  double width = 0;
  for (const Bar& bar : bars)
    width = std::max(width, text_width(figures ? bar.figure : bar.label, Typeface::kRegular, kLabelSize));
  return width;
}

void draw_bar(Canvas& canvas, const Bar& bar, const Box& frame, double y, const Scale& scale) {
  const auto x_of = [&](double value) { return frame.x + std::clamp(scale.share(value), 0.0, 1.0) * frame.width; };
  const double zero = x_of(0), end = std::isfinite(bar.value) ? x_of(bar.value) : zero;
  const double middle = y + kRow / 2;
  canvas.rectangle({std::min(zero, end), y + 3, std::abs(end - zero), kRow - 6}, {bar.tint, {}, 1});
  if (!bar.has_interval || !std::isfinite(bar.low) || !std::isfinite(bar.high)) return;
  // A pale line around the dark one keeps it readable on the bar itself.
  const Position left{x_of(bar.low), middle}, right{x_of(bar.high), middle};
  draw_line(canvas, left, right, {Tint::kPaper, 2.2});
  draw_line(canvas, left, right, {Tint::kText, 0.9});
  for (const Position& tip : {left, right})
    draw_line(canvas, {tip.x, middle - 2.2}, {tip.x, middle + 2.2}, {Tint::kText, 0.9});
}

}  // namespace

void draw_key(Canvas& canvas, Position at, double width, const std::vector<KeyEntry>& entries) {
  Position next = at;
  for (const KeyEntry& entry : entries) {
    const double wide = 14 + text_width(entry.meaning, Typeface::kRegular, 7) + 12;
    if (next.x > at.x && next.x + wide > at.x + width) next = {at.x, next.y + 10};
    draw_mark(canvas, {next.x + 5, next.y - 2.4}, entry);
    canvas.text({next.x + 14, next.y}, entry.meaning, {Typeface::kRegular, 7, Tint::kMuted});
    next.x += wide;
  }
}

double bars_height(std::size_t bars, bool titled) {
  return (titled ? kHead : kNoHead) + kRow * static_cast<double>(std::max<std::size_t>(bars, 1)) + kFoot;
}

void draw_bars(Canvas& canvas, const Box& outer, const std::string& title, const std::string& unit,
               const std::vector<Bar>& bars) {
  const double head = title.empty() ? kNoHead : kHead;
  canvas.text({outer.x, outer.y + kTitleSize}, title, {Typeface::kBold, kTitleSize});
  if (bars.empty()) {
    canvas.text({outer.x, outer.y + head + kRow - 4}, "nothing measured",
                {Typeface::kItalic, kLabelSize, Tint::kMuted});
    return;
  }
  const double labels = std::min(widest_label(bars, false), outer.width * 0.38) + 6;
  const double figures = std::min(widest_label(bars, true), outer.width * 0.36) + 6;
  const Box frame{outer.x + labels, outer.y + head, std::max(10.0, outer.width - labels - figures),
                  kRow * static_cast<double>(bars.size())};
  const Scale scale = bars_scale(bars);
  for (const Tick& tick : round_ticks(scale, std::clamp(static_cast<int>(frame.width / 45), 2, 6))) {
    const double x = frame.x + scale.share(tick.at) * frame.width;
    draw_line(canvas, {x, frame.y}, {x, frame.bottom()}, {tick.at == 0 ? Tint::kMuted : Tint::kGrid, 0.5});
    canvas.text({x, frame.bottom() + 9}, tick.label + unit, {Typeface::kRegular, 7, Tint::kMuted, Anchor::kMiddle});
  }
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const double y = frame.y + kRow * static_cast<double>(i);
    const HoverTitle hover(canvas, bars[i].hover);
    canvas.text({frame.x - 6, y + kRow / 2 + 2.6}, fitted(bars[i].label, Typeface::kRegular, kLabelSize, labels - 5.9),
                {Typeface::kRegular, kLabelSize, Tint::kText, Anchor::kEnd});
    draw_bar(canvas, bars[i], frame, y, scale);
    canvas.text({frame.right() + 6, y + kRow / 2 + 2.6},
                fitted(bars[i].figure, Typeface::kRegular, kLabelSize, figures),
                {Typeface::kRegular, kLabelSize, Tint::kMuted});
  }
}

void draw_parallel(Canvas& canvas, const Box& outer, const std::vector<ParallelAxis>& axes,
                   std::vector<ParallelPath> paths) {
  if (axes.empty()) return;
  const double step = outer.width / static_cast<double>(axes.size());
  const Box frame{outer.x + step / 2, outer.y + 16, step * static_cast<double>(axes.size() - 1), outer.height - 24};
  const auto place = [&](std::size_t axis, double share) -> Position {
    return {frame.x + step * static_cast<double>(axis), frame.bottom() - std::clamp(share, 0.0, 1.0) * frame.height};
  };
  std::stable_sort(paths.begin(), paths.end(),
                   [](const ParallelPath& a, const ParallelPath& b) { return a.weight < b.weight; });
  for (const ParallelPath& path : paths) {
    const HoverTitle hover(canvas, path.hover);
    std::vector<Position> points;
    for (std::size_t i = 0; i < std::min(axes.size(), path.shares.size()); ++i)
      if (std::isfinite(path.shares[i])) points.push_back(place(i, path.shares[i]));
    canvas.line(points, path.stroke);
  }
  for (std::size_t i = 0; i < axes.size(); ++i) {
    const double x = place(i, 0).x;
    draw_line(canvas, {x, frame.y}, {x, frame.bottom()}, {Tint::kMuted, 0.75});
    canvas.text({x, outer.y + 8}, fitted(axes[i].name, Typeface::kBold, 7, step - 4),
                {Typeface::kBold, 7, Tint::kText, Anchor::kMiddle});
    for (const Tick& tick : axes[i].ticks) {
      const Position p = place(i, tick.at);
      const std::string label = fitted(tick.label, Typeface::kRegular, 6.5, step - 8);
      const double width = text_width(label, Typeface::kRegular, 6.5);
      draw_line(canvas, {p.x - 2, p.y}, {p.x + 2, p.y}, {Tint::kMuted, 0.75});
      canvas.rectangle({p.x + 3, p.y - 4, width + 2, 8}, {Tint::kPaper, {}, 0.8}, 1);
      canvas.text({p.x + 4, p.y + 2.3}, label, {Typeface::kRegular, 6.5, Tint::kMuted});
    }
  }
}

}  // namespace lockstep::report
