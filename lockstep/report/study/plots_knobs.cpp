// Plots with knobs as axes: effects, parallel coordinates, where trials failed.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>

#include "lockstep/base/text.h"
#include "lockstep/report/canvas/chart.h"
#include "lockstep/report/recipe/words.h"
#include "lockstep/report/study/curves.h"
#include "lockstep/report/study/plots.h"

namespace lockstep::report {
namespace {

constexpr double kWidth = 540;
constexpr int kPerRow = 3;
constexpr double kPanelHeight = 128;
using Mark = KeyEntry::Mark;

// One of three scales, so that panels of small effects can be read and panels of one scale compared by eye.
Scale effect_scale(const KnobCurve& curve) {
  double low = 100, high = 105;
  for (const KnobCurve::Level& level : curve.levels) {
    low = std::min(low, std::max(level.low, level.percent * 0.9));
    high = std::max(high, std::min(level.high, level.percent * 1.05));
  }
  return {low > 86 ? 85.0 : low > 62 ? 60.0 : 0.0, high <= 106 ? 106.0 : 120.0};
}

std::vector<Tick> effect_ticks(const Scale& y) {
  std::vector<Tick> ticks;
  const double step = y.low > 80 ? 5 : y.low > 50 ? 20 : 25;
  for (double at = y.low; at <= y.high; at += step) ticks.push_back({at, short_number(at)});
  return ticks;
}

void draw_effect(Canvas& canvas, const Box& box, const KnobCurve& curve, const Scale& y) {
  Chart chart(canvas, box, {curve.axis.name, "", ""}, {{-0.06, 1.06}, y, curve.axis.ticks, effect_ticks(y)});
  for (const KnobCurve::Seen& seen : curve.seen)
    chart.dot(seen.share, seen.percent, 1.2, {Tint::kRamp2, {}, 0.9},
              fmt::format("trial {}: {:.1f}% of the best", seen.trial, seen.percent));
  if (curve.axis.ordered) {
    std::vector<Chart::Slice> band;
    std::vector<Position> line;
    for (const KnobCurve::Level& level : curve.levels) {
      band.push_back({level.share, level.low, level.high});
      line.push_back({level.share, level.percent});
    }
    chart.band(band, Tint::kAccentSoft);
    chart.line(line, {Tint::kAccent, 1.3});
  }
  for (const KnobCurve::Level& level : curve.levels) {
    if (!curve.axis.ordered || curve.levels.size() == 1)
      chart.whisker(level.share, level.low, level.high, {Tint::kAccent, 0.9});
    const bool best = std::abs(level.share - curve.best_share) < 1e-9;
    chart.dot(level.share, level.percent, best ? 3 : 1.8,
              {best ? Tint::kAccent : Tint::kPaper, Stroke{Tint::kAccent, 0.9}, 1},
              fmt::format("{} = {}: {:.1f}% of the best ({:.1f} to {:.1f})", curve.axis.name, level.value,
                          level.percent, level.low, level.high));
  }
}

void draw_effects(Canvas& canvas, const std::vector<KnobCurve>& curves) {
  const double panel = kWidth / kPerRow;
  for (std::size_t i = 0; i < curves.size(); ++i) {
    const std::size_t row = i / kPerRow, column = i % kPerRow;
    draw_effect(
        canvas,
        {static_cast<double>(column) * panel, static_cast<double>(row) * kPanelHeight, panel - 10, kPanelHeight - 12},
        curves[i], effect_scale(curves[i]));
  }
}

struct ThroughputRange {
  double low = 0, high = 1;
  double share(double value) const { return high > low ? (value - low) / (high - low) : 1; }
};

ThroughputRange throughput_range(const StudyView& study) {
  ThroughputRange range{1e300, 0};
  for (const tune::Trial& trial : study.trials) {
    if (!tune::measured(trial)) continue;
    range.low = std::min(range.low, trial.throughput), range.high = std::max(range.high, trial.throughput);
  }
  if (range.high <= 0) return {};
  range.low = std::max(range.low, range.high * 0.25);
  return range;
}

std::vector<ParallelAxis> parallel_axes(const StudyView& study, const ThroughputRange& range) {
  std::vector<ParallelAxis> axes;
  for (std::size_t i = 0; i < study.space.size(); ++i) {
    const KnobAxis axis = knob_axis(study.space, i);
    axes.push_back({axis.name, axis.ticks});
  }
  ParallelAxis last{study.unit, {}};
  for (const Tick& tick : round_ticks({range.low, range.high}, 5))
    last.ticks.push_back({range.share(tick.at), tick.label});
  axes.push_back(std::move(last));
  return axes;
}

std::vector<ParallelPath> parallel_paths(const StudyView& study, const ThroughputRange& range) {
  std::vector<ParallelPath> paths;
  for (const tune::Trial& trial : study.trials) {
    ParallelPath path;
    path.shares = axis_shares(study.space, trial.config);
    path.hover = fmt::format("trial {}: {}\n{}", trial.number,
                             tune::measured(trial) ? rate(trial.throughput, study.unit) : to_string(trial.outcome),
                             printable(study.space.to_text(trial.config), 600));
    if (tune::measured(trial)) {
      const double share = std::clamp(range.share(trial.throughput), 0.0, 1.0);
      path.shares.push_back(share);
      path.stroke = {ramp(share), 0.7};
      path.weight = share;
    } else {
      path.stroke = {Tint::kBad, 0.5, true};
      path.weight = -1;
    }
    paths.push_back(std::move(path));
  }
  if (study.conclusion.best) {
    ParallelPath best{axis_shares(study.space, study.conclusion.best->config), {Tint::kSecond, 1.8}, 2, "the best"};
    best.shares.push_back(range.share(study.conclusion.best->throughput.value));
    paths.push_back(std::move(best));
  }
  return paths;
}

void draw_failure_map(Canvas& canvas, const StudyView& study, const std::vector<std::size_t>& knobs) {
  const KnobAxis x = knob_axis(study.space, knobs[0]), y = knob_axis(study.space, knobs[1]);
  const ThroughputRange range = throughput_range(study);
  Chart chart(canvas, {0, 0, kWidth * 0.72, 260}, {"", x.name, y.name},
              {{-0.08, 1.08}, {-0.08, 1.08}, x.ticks, y.ticks});
  std::size_t turn = 0;
  for (const tune::Trial& trial : study.trials) {
    const std::vector<double> shares = axis_shares(study.space, trial.config);
    if (!std::isfinite(shares[knobs[0]]) || !std::isfinite(shares[knobs[1]])) continue;
    // Trials of one cell lie on a spiral around it instead of on top of each other.
    const double angle = static_cast<double>(turn) * 2.399963,
                 radius = 0.028 * std::sqrt(static_cast<double>(turn % 24) / 24);
    ++turn;
    const double px = shares[knobs[0]] + radius * std::cos(angle),
                 py = shares[knobs[1]] + 1.4 * radius * std::sin(angle);
    const std::string hover =
        fmt::format("trial {}: {}\n{}", trial.number,
                    tune::measured(trial) ? rate(trial.throughput, study.unit) : to_string(trial.outcome),
                    printable(study.space.to_text(trial.config), 600));
    if (tune::measured(trial)) {
      chart.dot(px, py, 2.6, {ramp(range.share(trial.throughput)), Stroke{Tint::kMuted, 0.3}, 1}, hover);
    } else {
      chart.cross(px, py, 2.6, trial.outcome == tune::Outcome::kOutOfMemory ? Tint::kBad : Tint::kSecond, hover);
    }
  }
  const double left = kWidth * 0.72 + 12;
  draw_key(canvas, {left, 26}, kWidth - left,
           {{Mark::kCross, Tint::kBad, "out of memory"}, {Mark::kCross, Tint::kSecond, "failed otherwise"}});
  canvas.text({left, 62}, study.unit, {Typeface::kRegular, 7, Tint::kMuted});
  for (int i = 0; i < kRampSteps; ++i) {
    const double top = 68 + 10 * (kRampSteps - 1 - i);
    canvas.rectangle({left, top, 12, 10}, {ramp((i + 0.5) / kRampSteps), {}, 1});
    if (i % 4 == 0)
      canvas.text({left + 16, top + 7.5}, short_number(range.low + (range.high - range.low) * i / (kRampSteps - 1)),
                  {Typeface::kRegular, 7, Tint::kMuted});
  }
}

}  // namespace

StudyPlot effects_plot(const StudyView& study) {
  const auto curves = std::make_shared<const std::vector<KnobCurve>>(knob_curves(study));
  const double rows = std::ceil(static_cast<double>(curves->size()) / kPerRow);
  return {
      "effects",
      "Effect of each knob",
      "Throughput in percent of the best when one knob moves and the others stay at the best (or follow where "
      "constraints force them), from the model of all trials with its 95% band. Pale dots are trials, whatever their "
      "other knobs. The filled dot is the best. Scales differ between panels. This is speed alone: a level may not "
      "run.",
      kWidth,
      std::max(1.0, rows) * kPanelHeight,
      [curves](Canvas& canvas) { draw_effects(canvas, *curves); }};
}

StudyPlot parallel_plot(const StudyView& study) {
  return {"parallel",
          "Parallel coordinates",
          "One line per trial; stronger is faster, the best setting is orange, failures are dashed.",
          kWidth,
          230,
          [&study](Canvas& canvas) {
            const ThroughputRange range = throughput_range(study);
            draw_parallel(canvas, {0, 0, kWidth, 230}, parallel_axes(study, range), parallel_paths(study, range));
          }};
}

StudyPlot failure_plot(const StudyView& study) {
  const std::vector<std::size_t> knobs = knobs_of_failure(study);
  return {
      "failures",
      "Where trials failed",
      "The two knobs that best separate failures from trials that ran. Crosses failed, dots ran; stronger is faster.",
      kWidth,
      262,
      [&study, knobs](Canvas& canvas) { draw_failure_map(canvas, study, knobs); }};
}

}  // namespace lockstep::report
