#include "lockstep/report/runbook/plots.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/report/canvas/chart.h"
#include "lockstep/report/canvas/lettering.h"

namespace lockstep::report {
namespace {

// Terms of a sum, each drawn where the one before it ends.
struct Sum {
  struct Term {
    std::string name, figure;
    double value = 0;
  };
  std::vector<Term> terms;
  std::string total;             // its figure
  double limit = 0;              // drawn as a line; 0: none
  std::string limit_name, unit;  // of the ticks
};

constexpr double kRow = 12.5, kFoot = 13;

double sum_height(std::size_t terms) { return kRow * static_cast<double>(terms + 1) + kFoot + 4; }

void draw_sum(Canvas& canvas, const Box& box, const Sum& sum) {
  double whole = 0, names = 0, figures = 0;
  for (const Sum::Term& term : sum.terms) {
    whole += term.value;
    names = std::max(names, text_width(term.name, Typeface::kRegular, kLabelSize));
    figures = std::max(figures, text_width(term.figure, Typeface::kRegular, kLabelSize));
  }
  figures = std::max(figures, text_width(sum.total, Typeface::kBold, kLabelSize));
  const Scale scale = round_scale(0, std::max(whole, sum.limit));
  const Box frame{box.x + names + 8, box.y, box.width - names - figures - 18,
                  kRow * static_cast<double>(sum.terms.size() + 1)};
  const auto x_of = [&](double value) { return frame.x + scale.share(value) * frame.width; };
  for (const Tick& tick : round_ticks(scale, 8)) {
    draw_line(canvas, {x_of(tick.at), frame.y}, {x_of(tick.at), frame.bottom()}, {Tint::kGrid, 0.5});
    canvas.text({x_of(tick.at), frame.bottom() + 9}, tick.label + sum.unit,
                {Typeface::kRegular, kTickSize, Tint::kMuted, Anchor::kMiddle});
  }
  double y = frame.y, before = 0;
  const auto row = [&](const std::string& name, const std::string& figure, double from, double to, bool strong) {
    const HoverTitle hover(canvas, fmt::format("{}: {}", name, figure));
    const Typeface face = strong ? Typeface::kBold : Typeface::kRegular;
    canvas.rectangle({x_of(from), y + 2, std::max(0.6, x_of(to) - x_of(from)), kRow - 4},
                     {strong ? Tint::kAccent : Tint::kRamp5, {}, 1});
    canvas.text({frame.x - 6, y + kRow / 2 + 2.6}, name, {face, kLabelSize, Tint::kText, Anchor::kEnd});
    canvas.text({box.right(), y + kRow / 2 + 2.6}, figure, {face, kLabelSize, Tint::kText, Anchor::kEnd});
    y += kRow;
  };
  for (const Sum::Term& term : sum.terms) {
    row(term.name, term.figure, before, before + term.value, false);
    before += term.value;
  }
  row("total", sum.total, 0, whole, true);
  if (sum.limit <= 0) return;
  draw_line(canvas, {x_of(sum.limit), frame.y - 2}, {x_of(sum.limit), frame.bottom()}, {Tint::kBad, 1, true});
  canvas.text({x_of(sum.limit) - 3, frame.y + 7}, sum.limit_name,
              {Typeface::kRegular, kTickSize, Tint::kBad, Anchor::kEnd});
}

Picture sum_picture(std::string title, Sum sum) {
  const double height = sum_height(sum.terms.size());
  return {.title = std::move(title),
          .caption = "",
          .height = height,
          .draw = [sum = std::move(sum)](Canvas& canvas, const Box& box) { draw_sum(canvas, box, sum); }};
}

std::string words_of(const std::vector<Bar>& bars) {
  std::vector<std::string> parts;
  parts.reserve(bars.size());
  for (const Bar& bar : bars) parts.push_back(bar.label + " " + bar.figure);
  return join(parts, "; ");
}

// A stretch of what the run does after a fault.
struct Stretch {
  std::string name;
  double seconds = 0;
  Tint tint = Tint::kMuted;
};

void draw_stretches(Canvas& canvas, const Box& box, const std::vector<Stretch>& stretches, double before) {
  double whole = before;
  for (const Stretch& stretch : stretches) whole += stretch.seconds;
  const double top = box.y + 14, height = 16;
  const auto x_of = [&](double seconds) { return box.x + (seconds + before) / whole * box.width; };
  canvas.rectangle({x_of(-before), top, x_of(0) - x_of(-before), height}, {Tint::kAccent, {}, 1});
  canvas.text({x_of(-before) + 4, top + 11}, "training", {Typeface::kRegular, kLabelSize, Tint::kPaper});
  double at = 0;
  for (const Stretch& stretch : stretches) {
    const double left = x_of(at), right = x_of(at + stretch.seconds);
    const HoverTitle hover(canvas, fmt::format("{}: {}", stretch.name, format_seconds(stretch.seconds)));
    canvas.rectangle({left, top, std::max(0.8, right - left), height}, {stretch.tint, {}, 1});
    const bool dark = stretch.tint == Tint::kAccent || stretch.tint == Tint::kSecond;
    if (text_width(stretch.name, Typeface::kRegular, kLabelSize) + 8 < right - left)
      canvas.text({left + 4, top + 11}, stretch.name,
                  {Typeface::kRegular, kLabelSize, dark ? Tint::kPaper : Tint::kText});
    at += stretch.seconds;
  }
  draw_line(canvas, {x_of(0), top - 4}, {x_of(0), top + height + 3}, {Tint::kBad, 1.2});
  canvas.text({x_of(0), top - 6}, "the node dies", {Typeface::kBold, kLabelSize, Tint::kBad, Anchor::kMiddle});
  for (const Tick& tick : round_ticks({-before, whole - before}, 9)) {
    draw_line(canvas, {x_of(tick.at), top + height}, {x_of(tick.at), top + height + 3}, {Tint::kMuted, 0.6});
    canvas.text({x_of(tick.at), top + height + 11}, tick.label + " s",
                {Typeface::kRegular, kTickSize, Tint::kMuted, Anchor::kMiddle});
  }
  std::vector<KeyEntry> key;
  for (const Stretch& stretch : stretches) {
    if (stretch.tint != Tint::kAccent) key.push_back({KeyEntry::Mark::kBand, stretch.tint, stretch.name});
  }
  draw_key(canvas, {box.x, top + height + 24}, box.width, key);
}

}  // namespace

Picture strategies_picture(Quotes& q, const char* unit) {
  std::vector<Bar> bars;
  for (std::size_t i = 0; i < q.size("/strategies"); ++i) {
    const std::string at = fmt::format("/strategies/{}", i);
    if (!q.is_true(at + "/fits")) continue;
    const bool planned = q.is_true(at + "/is_planned");
    const std::string figure =
        fmt::format("{} ({} to {})", q.count(at + "/per_second"), q.count(at + "/low"), q.count(at + "/high"));
    bars.push_back({.label = q.text(at + "/name"),
                    .value = q.number(at + "/per_second") / 1e3,
                    .low = q.number(at + "/low") / 1e3,
                    .high = q.number(at + "/high") / 1e3,
                    .tint = planned ? Tint::kAccent : Tint::kSecond,
                    .figure = figure,
                    .hover = figure});
  }
  const double height = bars_height(bars.size(), false);
  return {
      .title = fmt::format("Expected {} per second of each strategy", unit),
      .caption = fmt::format(
          "Thousand {} a second, with the range that holds the truth with a probability of 90%; blue: this plan. "
          "The ranges are about the cost model, which errs alike for all of them: the order is surer than the figures.",
          unit),
      .height = height,
      .draw = [bars](Canvas& canvas, const Box& box) { draw_bars(canvas, box, "", "k", bars); },
      .words = words_of(bars)};
}

Picture memory_picture(Quotes& q) {
  Sum sum{.terms = {},
          .total = q.gib("/plan/best/memory_gib/total"),
          .limit = q.number("/plan/best/memory_gib/capacity"),
          .limit_name = "what the GPU has",
          .unit = " GiB"};
  for (const char* term : {"parameters", "gradients", "optimizer", "activations", "buffers", "overhead"}) {
    const std::string at = fmt::format("/plan/best/memory_gib/{}", term);
    sum.terms.push_back({term, q.gib(at), q.number(at)});
  }
  return sum_picture("Memory of a GPU, term by term", std::move(sum));
}

Picture time_picture(Quotes& q) {
  constexpr double kShownShare = 0.002;
  Sum sum{.terms = {}, .total = q.seconds("/plan/best/prediction/step_seconds"), .unit = " s"};
  for (const char* term : {"compute", "tp_comm", "dp_comm", "pp_comm", "cp_comm", "ep_comm", "bubble", "optimizer",
                           "other", "selection"}) {
    const std::string at = fmt::format("/plan/best/breakdown_seconds/{}", term);
    if (q.number(fmt::format("/time_shares/{}", term)) < kShownShare) continue;
    sum.terms.push_back({term, q.seconds(at), q.number(at)});
  }
  return sum_picture("Time of a step, term by term", std::move(sum));
}

Picture node_loss_picture(Quotes& q, bool spare) {
  const std::string at = "/recovery/";
  std::vector<Stretch> stretches{{"noticed", q.number(at + "detect_seconds"), Tint::kSecond}};
  if (!spare) stretches.push_back({"waiting for it", q.number(at + "wait_seconds"), Tint::kSecondSoft});
  stretches.push_back({"state copied", q.number(at + "copy_seconds"), Tint::kRamp7});
  stretches.push_back(
      {"restart", q.number(at + "restart_seconds") + (spare ? 0.0 : q.number(at + "resize_seconds")), Tint::kRamp3});
  const double step = spare ? q.number("/plan/best/prediction/step_seconds") : q.number(at + "smaller_step_seconds");
  stretches.push_back({spare ? "first step" : "first step, with fewer nodes", step, Tint::kAccent});
  return {
      .title = "What the run does after a node dies",
      .caption = "Seconds after the fault. The step in which the node died is done again.",
      .height = 56,
      .draw = [stretches, step](Canvas& canvas, const Box& box) { draw_stretches(canvas, box, stretches, step / 4); }};
}

Picture losses_picture(Quotes& q) {
  struct Cause {
    const char *key, *name;
  };
  constexpr Cause kCauses[] = {{"lost", "work done again"},
                               {"stalled", "checkpoints"},
                               {"recovering", "recovering"},
                               {"waiting", "waiting for a node"},
                               {"shrunk", "fewer nodes"}};
  std::vector<Bar> bars;
  for (const Cause& cause : kCauses) {
    const std::string at = fmt::format("/goodput/choices/0/shares/{}", cause.key);
    const std::string figure = q.percent(at, 2);
    bars.push_back(
        {.label = cause.name, .value = 100 * q.number(at), .has_interval = false, .figure = figure, .hover = figure});
  }
  return {.title = "Where the time goes that does not train",
          .caption = "Share of the time that does not train, by cause, as planned; the mean of all runs.",
          .height = bars_height(bars.size(), false),
          .draw = [bars](Canvas& canvas, const Box& box) { draw_bars(canvas, box, "", "%", bars); },
          .words = words_of(bars)};
}

Picture scaling_picture(Quotes& q, const char* unit) {
  std::vector<Position> points;
  for (std::size_t i = 0; i < q.size("/scaling/points"); ++i) {
    const std::string at = fmt::format("/scaling/points/{}", i);
    if (!q.is_true(at + "/fits")) continue;
    const double devices = q.number(at + "/devices");
    points.push_back({devices, devices * q.number(fmt::format("/scaling_per_gpu/{}", i))});
  }
  const double gpus = q.number("/size/gpus"),
               own = q.number("/plan/best/prediction/" + std::string(std::string_view(unit) == "tokens"
                                                                         ? "tokens_per_second"
                                                                         : "samples_per_second"));
  return {.title = fmt::format("{} per second over the number of GPUs", unit),
          .caption = fmt::format("Over the number of GPUs: {} a second, both axes logarithmic; dashed: every GPU as "
                                 "fast as at the smallest size; "
                                 "the ring is this plan.",
                                 unit),
          .height = 150,
          .draw = [points, gpus, own, unit](Canvas& canvas, const Box& box) {
            if (points.empty()) return;
            Chart::Axes axes{.x = {points.front().x, points.back().x * 1.0001, true},
                             .y = {0.8 * points.front().y, 1.25 * points.back().y, true}};
            for (const Position& point : points) axes.x_ticks.push_back({point.x, fmt::format("{:.0f}", point.x)});
            for (double power = 1; power < axes.y.high; power *= 10) {
              for (const double at : {power, 2 * power, 5 * power}) {
                if (at > axes.y.low && at < axes.y.high) axes.y_ticks.push_back({at, short_number(at)});
              }
            }
            Chart chart(canvas, box, {"", "GPUs", fmt::format("{}/s", unit)}, axes);
            const Position first = points.front();
            const Position ideal[] = {first, {points.back().x, first.y * points.back().x / first.x}};
            chart.line(ideal, {Tint::kMuted, 0.8, true});
            chart.line(points, {Tint::kAccent, 1.4});
            for (const Position& point : points)
              chart.dot(point.x, point.y, 2, {Tint::kAccent, {}, 1}, short_number(point.y));
            chart.dot(gpus, own, 4, {std::nullopt, Stroke{Tint::kSecond, 1.4}, 1}, "this plan");
          }};
}

}  // namespace lockstep::report
