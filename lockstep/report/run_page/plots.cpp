#include "lockstep/report/run_page/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/units.h"
#include "lockstep/report/canvas/chart.h"
#include "lockstep/report/canvas/lettering.h"
#include "lockstep/report/figures.h"

namespace lockstep::report {
namespace {

constexpr double kFoot = 13;
constexpr std::size_t kMostMemoryRows = 16;

Lettering small(Tint tint = Tint::kText, Anchor anchor = Anchor::kStart) {
  return {Typeface::kRegular, kLabelSize, tint, anchor};
}

// ---- memory

constexpr double kMemoryRow = 13;

std::size_t memory_rows(const MemoryTerms& memory) {
  return (memory.predicted ? 1 : 0) + std::min(memory.ranks.size(), kMostMemoryRows);
}

Tint tint_of_term(std::size_t term) {
  constexpr Tint kTerms[] = {Tint::kRamp8, Tint::kRamp6, Tint::kRamp4, Tint::kSecond, Tint::kRamp2, Tint::kMuted};
  return kTerms[term % std::size(kTerms)];
}

void draw_terms(Canvas& canvas, const plan::MemoryBreakdown& memory, const Box& frame, double y, double full) {
  double x = frame.x;
  for (std::size_t i = 0; i < std::size(kMemoryTerms); ++i) {
    const double bytes = memory.*kMemoryTerms[i].bytes, width = bytes / full * frame.width;
    const HoverTitle title(canvas, fmt::format("{}: {}", kMemoryTerms[i].name, format_bytes(bytes)));
    canvas.rectangle({x, y + 2, width, kMemoryRow - 4}, {tint_of_term(i), {}, 1});
    x += width;
  }
}

// ---- heat map

constexpr double kLeastHeatRow = 5, kLargestHeatRow = 13, kMostHeatHeight = 330;

double heat_row(const HeatMap& heat) {
  const double rows = static_cast<double>(std::max<std::size_t>(heat.ranks.size(), 1));
  return std::clamp(kMostHeatHeight / rows, kLeastHeatRow, kLargestHeatRow);
}

struct Range {
  double low = INFINITY, high = -INFINITY;
  void add(double value) {
    if (!std::isfinite(value)) return;
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool is_empty() const { return low > high; }
};

// ---- time line

Tint tint_of(Period period) {
  if (period == Period::kTraining) return Tint::kAccent;
  return period == Period::kRecovery ? Tint::kBad : Tint::kRamp2;
}

}  // namespace

void draw_curve(Canvas& canvas, const Box& box, const std::vector<telemetry::Point>& points,
                const std::vector<telemetry::Point>& second, const CurveStyle& style) {
  Range x, y;
  std::vector<Position> line, dots;
  const auto add = [&](const std::vector<telemetry::Point>& from, std::vector<Position>& to) {
    for (const telemetry::Point& point : from) {
      if (!std::isfinite(point.value)) continue;
      to.push_back({static_cast<double>(point.step), point.value * style.scale});
      x.add(to.back().x);
      y.add(to.back().y);
    }
  };
  add(points, line);
  add(second, dots);
  if (y.is_empty()) return;
  const bool band = style.band.expected > 0.0;
  if (band) y.add(style.band.low * style.scale), y.add(style.band.high * style.scale);
  if (style.from_zero) y.add(0.0);
  if (x.high <= x.low) x.high = x.low + 1;
  const Box plot{box.x, box.y, box.width, box.height - kFoot};
  Chart chart(canvas, plot, {style.title, "", style.unit}, {{x.low, x.high}, round_scale(y.low, y.high), {}, {}});
  std::vector<KeyEntry> key;
  if (band) {
    const Chart::Slice from{x.low, style.band.low * style.scale, style.band.high * style.scale};
    chart.band(std::vector<Chart::Slice>{from, {x.high, from.low, from.high}}, Tint::kSecondSoft);
    chart.rule(style.band.expected * style.scale, {Tint::kSecond, 0.9, true},
               fmt::format("predicted {}", short_number(style.band.expected * style.scale)));
    const bool has_width = style.band.high > style.band.low;
    key.push_back({has_width ? KeyEntry::Mark::kBand : KeyEntry::Mark::kDash,
                   has_width ? Tint::kSecondSoft : Tint::kSecond, has_width ? "predicted, 90%" : "predicted"});
  }
  chart.line(line, {Tint::kAccent, 1.1});
  if (line.size() == 1) chart.dot(line[0].x, line[0].y, 2, {Tint::kAccent, {}, 1}, short_number(line[0].y));
  key.push_back({KeyEntry::Mark::kLine, Tint::kAccent, second.empty() ? "measured, by step" : "training, by step"});
  for (const Position& dot : dots) {
    chart.dot(dot.x, dot.y, 2, {Tint::kSecond, {}, 1}, fmt::format("step {}: {:.4g}", dot.x, dot.y));
  }
  if (!dots.empty()) key.push_back({KeyEntry::Mark::kDot, Tint::kSecond, "evaluation"});
  draw_key(canvas, {chart.frame().x, box.bottom() - 2}, box.width, key);
}

double memory_height(const MemoryTerms& memory) {
  return kMemoryRow * static_cast<double>(memory_rows(memory)) + 2 * kFoot + 4;
}

void draw_memory(Canvas& canvas, const Box& box, const MemoryTerms& memory) {
  const double largest = std::max(memory.predicted ? memory.predicted->total() : 0.0, memory.peak_bytes);
  // The capacity is drawn where it is near enough to matter.
  const bool capacity = memory.capacity_bytes() > 0.0 && memory.capacity_bytes() < 4 * largest;
  const double full = std::max(largest, capacity ? memory.capacity_bytes() : 0.0) * 1.02;
  if (full <= 0.0) return;
  const Box frame{box.x + 56, box.y, box.width - 56 - 62, box.height};
  double y = box.y;
  const auto label = [&](const std::string& name, double bytes) {
    canvas.text({frame.x - 5, y + 9.3}, name, small(Tint::kMuted, Anchor::kEnd));
    canvas.text({frame.right() + 5, y + 9.3}, format_bytes(bytes), small());
  };
  if (memory.predicted) {
    draw_terms(canvas, *memory.predicted, frame, y, full);
    label("predicted", memory.predicted->total());
    y += kMemoryRow;
  }
  for (std::size_t i = 0; i < memory.ranks.size() && i < kMostMemoryRows; ++i) {
    const MemoryOfRank& rank = memory.ranks[i];
    const HoverTitle title(canvas, fmt::format("rank {}: peak {}", rank.rank, format_bytes(rank.peak_bytes)));
    canvas.rectangle({frame.x, y + 2, rank.peak_bytes / full * frame.width, kMemoryRow - 4}, {Tint::kAccent, {}, 1});
    label(fmt::format("rank {}", rank.rank), rank.peak_bytes);
    y += kMemoryRow;
  }
  if (capacity) {
    const double x = frame.x + memory.capacity_bytes() / full * frame.width;
    draw_line(canvas, {x, box.y}, {x, y}, {Tint::kBad, 1, true});
  }
  std::vector<KeyEntry> key;
  for (std::size_t i = 0; memory.predicted && i < std::size(kMemoryTerms); ++i) {
    key.push_back({KeyEntry::Mark::kDot, tint_of_term(i), kMemoryTerms[i].name});
  }
  key.push_back({KeyEntry::Mark::kLine, Tint::kAccent, "measured peak"});
  if (memory.capacity_bytes() > 0.0) {
    const std::string text = format_bytes(memory.capacity_bytes()) + " capacity";
    key.push_back({KeyEntry::Mark::kDash, Tint::kBad, capacity ? text : text + " (beyond the scale)"});
  }
  draw_key(canvas, {frame.x, y + kFoot - 2}, frame.width + 56, key);
}

double heat_height(const HeatMap& heat) {
  return kTitleSize + 8 + heat_row(heat) * static_cast<double>(heat.ranks.size()) + 2 * kFoot;
}

void draw_heat(Canvas& canvas, const Box& box, const HeatMap& heat) {
  Range range;
  for (const auto& row : heat.values) std::for_each(row.begin(), row.end(), [&](double v) { range.add(v); });
  if (range.is_empty() || heat.steps.empty()) return;
  canvas.text({box.x, box.y + kTitleSize}, heat.what, {Typeface::kBold, kTitleSize});
  const double row = heat_row(heat), left = box.x + 34, width = box.width - 34;
  const double column = width / static_cast<double>(heat.steps.size());
  double y = box.y + kTitleSize + 8;
  for (std::size_t r = 0; r < heat.ranks.size(); ++r, y += row) {
    if (row >= 7.5 || r % 4 == 0)
      canvas.text({left - 4, y + std::min(row, 9.0) - 1.5}, std::to_string(heat.ranks[r]),
                  small(Tint::kMuted, Anchor::kEnd));
    for (std::size_t c = 0; c < heat.values[r].size(); ++c) {
      const double value = heat.values[r][c];
      if (!std::isfinite(value)) continue;
      const HoverTitle title(
          canvas, fmt::format("rank {}, from step {}: {}", heat.ranks[r], heat.steps[c], format_seconds(value)));
      const double share = range.high > range.low ? (value - range.low) / (range.high - range.low) : 0.0;
      canvas.rectangle({left + column * static_cast<double>(c), y, column + 0.15, row - 0.6}, {ramp(share), {}, 1});
    }
  }
  canvas.text({left, y + 9}, fmt::format("step {}", heat.steps.front()), small(Tint::kMuted));
  canvas.text({left + width, y + 9}, fmt::format("step {}", heat.steps.back()), small(Tint::kMuted, Anchor::kEnd));
  draw_key(canvas, {left, y + 9 + kFoot}, width,
           {{KeyEntry::Mark::kBand, ramp(0), format_seconds(range.low)},
            {KeyEntry::Mark::kBand, ramp(1), format_seconds(range.high)}});
}

void draw_time_line(Canvas& canvas, const Box& box, const Goodput& goodput, const Incidents& incidents,
                    double started) {
  if (goodput.elapsed_seconds <= 0.0) return;
  const auto x_of = [&](double seconds) {
    return box.x + std::clamp(seconds / goodput.elapsed_seconds, 0.0, 1.0) * box.width;
  };
  const double top = box.y + 10, height = 14;
  for (const TimeSpan& span : goodput.line) {
    const HoverTitle title(canvas, fmt::format("{}: {} to {}", to_string(span.period), format_seconds(span.begin),
                                               format_seconds(span.end)));
    canvas.rectangle({x_of(span.begin), top, x_of(span.end) - x_of(span.begin), height}, {tint_of(span.period), {}, 1});
  }
  for (const SavedCheckpoint& saved : incidents.checkpoints) {
    const double x = x_of(saved.time - started);
    draw_line(canvas, {x, top + height}, {x, top + height + 4}, {Tint::kText, 0.8});
  }
  for (const Incident& incident : incidents.incidents) {
    const double x = x_of(incident.began_at - started), y = top - 5;
    const HoverTitle title(canvas, fmt::format("{}: {}", to_string(incident.kind), incident.what));
    const Tint tint = incident.level == telemetry::Level::kError ? Tint::kBad : Tint::kSecond;
    canvas.area(std::vector<Position>{{x - 3, y - 3}, {x + 3, y - 3}, {x, y + 4}}, {tint, {}, 1});
  }
  canvas.text({box.x, top + height + 13}, "0", small(Tint::kMuted));
  canvas.text({box.right(), top + height + 13}, format_seconds(goodput.elapsed_seconds),
              small(Tint::kMuted, Anchor::kEnd));
  draw_key(canvas, {box.x, top + height + 27}, box.width,
           {{KeyEntry::Mark::kBand, Tint::kAccent, "training"},
            {KeyEntry::Mark::kBand, Tint::kBad, "recovery"},
            {KeyEntry::Mark::kBand, Tint::kRamp2, "start, end"},
            {KeyEntry::Mark::kDot, Tint::kSecond, "incident"},
            {KeyEntry::Mark::kLine, Tint::kText, "checkpoint (below)"}});
}

}  // namespace lockstep::report
