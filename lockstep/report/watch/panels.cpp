#include "lockstep/report/watch/panels.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/report/run_sections.h"
#include "lockstep/telemetry/plot.h"

namespace lockstep::report {
namespace {

constexpr int kWide = 120;         // from here on two curves stand beside each other
constexpr int kLeastPlotRows = 4;  // below it a curve is a sparkline
constexpr int kAxisRows = 3;       // title, axis, labels

// ---- overview

std::string figure(const std::string& name, const std::string& value, const std::string& detail,
                   const TerminalStyle& style) {
  return "  " + inked(left(name, 12), Ink::kDim, style) + left(value, 20) + inked(detail, Ink::kDim, style) + "\n";
}

template <class Show>
std::string band_words(const plan::Interval& band, const Show& show) {
  if (band.expected <= 0.0) return "";
  std::string text = "predicted " + show(band.expected);
  if (band.high > band.low) text += fmt::format(" ({} to {})", show(band.low), show(band.high));
  return text;
}

std::string figures(const WatchView& view, const TerminalStyle& style) {
  const RunFacts& facts = view.facts;
  const auto rate = [&](double value) { return format_rate(value, facts.unit); };
  const auto percent = [](double share) { return fmt::format("{:.1f}%", 100.0 * share); };
  std::string step = std::to_string(view.now.step);
  if (view.now.steps_total > 0) step += fmt::format(" of {}", view.now.steps_total);
  std::string text =
      figure("step", step, view.now.eta_seconds ? "done in " + format_seconds(*view.now.eta_seconds) : "", style);
  if (view.now.loss) {
    text += figure("loss", fmt::format("{:.4f}", *view.now.loss),
                   view.now.gradient_norm ? fmt::format("gradient norm {:.4g}", *view.now.gradient_norm) : "", style);
  }
  if (view.now.per_second) {
    text += figure("throughput", rate(*view.now.per_second), band_words(facts.predicted.per_second, rate), style);
  }
  if (view.now.mfu || view.now.efficiency) {
    text += figure(view.now.mfu ? "MFU" : "efficiency", percent(view.now.mfu ? *view.now.mfu : *view.now.efficiency),
                   band_words(facts.predicted.mfu, percent), style);
  }
  if (view.goodput.useful_seconds > 0.0) text += figure("goodput", percent(view.goodput.share()), "", style);
  if (view.now.memory_bytes) {
    text += figure("memory", format_bytes(*view.now.memory_bytes),
                   facts.predicted.memory_bytes > 0.0 ? "predicted " + format_bytes(facts.predicted.memory_bytes) : "",
                   style);
  }
  for (const Standing& standing : view.standings) {
    if (!standing.straggler) continue;
    text +=
        "  " +
        inked(fmt::format("rank {} holds the others up: busy {:.0f}% longer", standing.rank, 100.0 * standing.slowdown),
              Ink::kYellow, style) +
        "\n";
    break;
  }
  for (const Incident& incident : view.incidents.incidents) {
    if (incident.kind != IncidentKind::kAlert || incident.ended_at > 0.0) continue;
    text += clipped("  " + inked("alert: " + printable(incident.what, 200), Ink::kRed, style), style.width) + "\n";
  }
  return text;
}

struct Panel {
  std::string title;
  telemetry::Curve curve;
  plan::Interval band;
};

// Dotted lines at both ends of the band, drawn into the same plot.
std::vector<telemetry::Curve> with_band(const Panel& panel) {
  std::vector<telemetry::Curve> curves{panel.curve};
  curves[0].label.clear();
  if (panel.band.expected <= 0.0 || panel.curve.points.empty()) return curves;
  constexpr int kDots = 24;
  const double from = panel.curve.points.front().first, to = panel.curve.points.back().first;
  for (const double level : {panel.band.low, panel.band.high}) {
    telemetry::Curve dotted;
    for (int i = 0; i <= kDots; ++i) {
      dotted.points.emplace_back(from + (to - from) * i / kDots, level);
      dotted.points.emplace_back(std::numeric_limits<double>::quiet_NaN(), level);  // not joined to the next
    }
    curves.push_back(std::move(dotted));
  }
  return curves;
}

std::vector<Panel> panels_of(const WatchView& view) {
  std::vector<Panel> panels;
  const auto add = [&](const std::string& title, const std::string& metric, double scale, plan::Interval band) {
    Panel panel{title, {}, {band.low * scale, band.expected * scale, band.high * scale}};
    for (const telemetry::Point& point : view.curve(metric)) {
      panel.curve.points.emplace_back(static_cast<double>(point.step), point.value * scale);
    }
    if (panel.curve.points.size() > 1) panels.push_back(std::move(panel));
  };
  using namespace telemetry;
  const PredictedBand& band = view.facts.predicted;
  const std::string rate = view.facts.unit + "_per_second";
  add("loss", std::string(metric::kLoss), 1.0, {});
  add(view.facts.unit + "/s" + (band.per_second.expected > 0.0 ? " (dotted: predicted, 90%)" : ""), rate, 1.0,
      band.per_second);
  add("MFU, %", std::string(metric::kMfu), 100.0, band.mfu);
  add("efficiency, %", std::string(metric::kEfficiency), 100.0, band.mfu);
  add("gradient norm", std::string(metric::kGradientNorm), 1.0, {});
  return panels;
}

std::vector<std::string> plotted(const Panel& panel, int width, int rows, const TerminalStyle& style) {
  telemetry::PlotOptions options{.width = width, .height = rows, .x_label = "step", .unicode = style.unicode};
  std::vector<std::string> lines = split(telemetry::plot(with_band(panel), options), '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  // The plot lists its curves where there are several; these have no names.
  lines.resize(std::min(lines.size(), static_cast<std::size_t>(rows + 1)));
  lines.insert(lines.begin(), "  " + inked(panel.title, Ink::kBold, style));
  return lines;
}

std::string beside(const std::vector<std::string>& a, const std::vector<std::string>& b, int width) {
  std::string text;
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    text += left(i < a.size() ? clipped(a[i], width) : "", width) + "  " + (i < b.size() ? clipped(b[i], width) : "") +
            "\n";
  }
  return text;
}

// ---- ranks

std::string heat_cell(double share, const TerminalStyle& style) {
  constexpr const char* kBlocks[] = {" ", "░", "▒", "▓", "█"};
  constexpr const char* kLetters[] = {".", "-", "+", "*", "#"};
  constexpr Ink kInks[] = {Ink::kDim, Ink::kGreen, Ink::kGreen, Ink::kYellow, Ink::kRed};
  const int level = std::clamp(static_cast<int>(share * 5.0), 0, 4);
  return inked(style.unicode ? kBlocks[level] : kLetters[level], kInks[level], style);
}

// ---- timeline

struct Glyph {
  char letter;
  Ink ink;
};

Glyph glyph_of(const telemetry::Span& span) {
  using telemetry::SpanKind;
  switch (span.kind) {
    case SpanKind::kLoad:
      return {'l', Ink::kYellow};
    case SpanKind::kForward:
      return {'F', Ink::kBlue};
    case SpanKind::kBackward:
    case SpanKind::kWeightGradient:
      return {'B', Ink::kGreen};
    case SpanKind::kRecompute:
      return {'R', Ink::kCyan};
    case SpanKind::kCollective:
    case SpanKind::kPublish:
      return {'c', Ink::kPlain};
    case SpanKind::kWait:
      return {'w', Ink::kRed};
    case SpanKind::kOptimizer:
      return {'o', Ink::kCyan};
    case SpanKind::kCheckpoint:
    case SpanKind::kSnapshot:
      return {'s', Ink::kYellow};
    case SpanKind::kEvaluation:
      return {'e', Ink::kPlain};
    case SpanKind::kStep:
    case SpanKind::kHost:
      break;
  }
  return {'.', Ink::kDim};
}

std::string timeline_row(const telemetry::SpanBatch& batch, double origin, double length, int cells,
                         const TerminalStyle& style) {
  // Spans nest: at the middle of a cell the shortest one says what the rank was doing.
  std::vector<const telemetry::Span*> row(static_cast<std::size_t>(cells), nullptr);
  const double cell = length / cells;
  for (const telemetry::Span& span : batch.spans) {
    if (span.lane != telemetry::SpanLane::kMain) continue;
    const double begin = batch.time - origin + span.begin;
    const int from = std::clamp(static_cast<int>(std::ceil(begin / cell - 0.5)), 0, cells);
    const int to = std::clamp(static_cast<int>(std::ceil((begin + span.seconds) / cell - 0.5)), from, cells);
    for (int i = from; i < to; ++i) {
      const telemetry::Span*& shown = row[static_cast<std::size_t>(i)];
      if (shown == nullptr || span.seconds <= shown->seconds) shown = &span;
    }
  }
  std::string text;
  for (const telemetry::Span* span : row) {
    const Glyph glyph = span != nullptr ? glyph_of(*span) : Glyph{' ', Ink::kPlain};
    text += inked(std::string(1, glyph.letter), glyph.ink, style);
  }
  return text;
}

}  // namespace

std::string overview_panel(const WatchView& view, const ScreenSize& size, const TerminalStyle& style) {
  std::string text = figures(view, style);
  if (view.facts.steps() == 0) {
    const std::string usage = usage_text(view.usage, static_cast<std::size_t>(std::max(1, size.rows - 6)), style);
    return text + (usage.empty() ? "\n  No step is recorded yet.\n" : "\n" + usage);
  }
  const std::vector<Panel> panels = panels_of(view);
  if (panels.empty()) return text;
  const bool wide = style.width >= kWide;
  const int used = static_cast<int>(std::count(text.begin(), text.end(), '\n')) + 1;
  const int rooms =
      wide ? static_cast<int>((panels.size() + 1) / 2) : static_cast<int>(std::min<std::size_t>(panels.size(), 2));
  int shown = std::max(1, rooms);
  while (shown > 1 && (size.rows - used) / shown - kAxisRows < kLeastPlotRows) --shown;
  const int rows = std::max(2, (size.rows - used) / shown - kAxisRows);
  text += "\n";
  for (int i = 0; i < shown; ++i) {
    const std::size_t first = static_cast<std::size_t>(wide ? 2 * i : i);
    if (first >= panels.size()) break;
    const int width = wide ? style.width / 2 - 2 : style.width;
    const std::vector<std::string> a = plotted(panels[first], width, rows, style);
    if (wide && first + 1 < panels.size()) {
      text += beside(a, plotted(panels[first + 1], width, rows, style), width);
    } else {
      for (const std::string& line : a) text += line + "\n";
    }
  }
  return text;
}

std::string waterfall_panel(const WatchView& view, const TerminalStyle& style) {
  const std::string text = waterfall_text(view.waterfall, style);
  if (text.empty()) return "  No step is recorded yet.\n";
  return text + inked(fmt::format("  of the last {} steps\n", view.waterfall.steps), Ink::kDim, style);
}

std::string ranks_panel(const WatchView& view, const ScreenSize& size, const TerminalStyle& style) {
  if (view.heat.ranks.empty()) {
    const std::string usage = usage_text(view.usage, 64, style);
    return usage.empty() ? "  No step is recorded yet.\n" : usage;
  }
  double low = INFINITY, high = -INFINITY;
  for (const auto& row : view.heat.values) {
    for (const double value : row) {
      if (std::isfinite(value)) low = std::min(low, value), high = std::max(high, value);
    }
  }
  std::string text =
      "  " +
      inked(fmt::format("{}, steps {} to {}", view.heat.what, view.heat.steps.front(), view.facts.last_step),
            Ink::kBold, style) +
      "\n";
  const int cells = std::clamp(style.width - 34, 8, 60);
  for (std::size_t r = 0; r < view.heat.ranks.size(); ++r) {
    std::string row = "  " + right(std::to_string(view.heat.ranks[r]), 5) + " ";
    const std::vector<double>& values = view.heat.values[r];
    double sum = 0.0;
    int count = 0;
    for (int c = 0; c < cells; ++c) {
      const std::size_t at = static_cast<std::size_t>(c) * values.size() / static_cast<std::size_t>(cells);
      const double value = values[at];
      row += std::isfinite(value) ? heat_cell(high > low ? (value - low) / (high - low) : 0.0, style) : " ";
    }
    for (const double value : values) {
      if (std::isfinite(value)) sum += value, ++count;
    }
    row += right(count > 0 ? format_seconds(sum / count) : "-", 10);
    const auto standing = std::find_if(view.standings.begin(), view.standings.end(),
                                       [&](const Standing& each) { return each.rank == view.heat.ranks[r]; });
    if (standing != view.standings.end() && view.standings.size() > 1) {
      const std::string slower = right(fmt::format("{:+.1f}%", 100.0 * standing->slowdown), 9);
      row += standing->straggler ? inked(slower + " <", Ink::kYellow, style) : slower;
    }
    text += row + "\n";
  }
  text += fmt::format("  {} {} to {} {}\n\n", heat_cell(0.0, style), format_seconds(low), heat_cell(1.0, style),
                      format_seconds(high));
  return text + ranks_text(view.facts, view.standings, static_cast<std::size_t>(std::max(8, size.rows)), style);
}

std::string timeline_panel(const WatchView& view, const ScreenSize& size, const TerminalStyle& style) {
  if (view.last_step.empty()) return "  No spans are recorded (yet).\n";
  double origin = INFINITY, end = -INFINITY;
  for (const telemetry::SpanBatch& batch : view.last_step) {
    origin = std::min(origin, batch.time);
    for (const telemetry::Span& span : batch.spans) {
      if (span.lane == telemetry::SpanLane::kMain) end = std::max(end, batch.time + span.begin + span.seconds);
    }
  }
  const double length = std::max(end - origin, 1e-9);
  const int cells = std::max(10, style.width - 10);
  std::string text =
      "  " + inked(fmt::format("step {}, {}", view.last_step.front().step, format_seconds(length)), Ink::kBold, style) +
      "\n";
  const std::size_t most = static_cast<std::size_t>(std::max(4, size.rows - 4));
  for (std::size_t i = 0; i < view.last_step.size() && i < most; ++i) {
    const telemetry::SpanBatch& batch = view.last_step[i];
    text +=
        "  " + right(std::to_string(batch.rank), 5) + " " + timeline_row(batch, origin, length, cells, style) + "\n";
  }
  if (view.last_step.size() > most) text += fmt::format("  {} more ranks\n", view.last_step.size() - most);
  const std::pair<char, const char*> kMeaning[] = {{'F', "forward"}, {'B', "backward"}, {'R', "again"},
                                                   {'w', "blocked"}, {'l', "load"},     {'o', "optimizer"},
                                                   {'s', "save"},    {'.', "other"}};
  std::string key = "  ";
  for (const auto& [letter, meaning] : kMeaning) key += fmt::format("{} {} ", letter, meaning);
  return text + inked(key, Ink::kDim, style) + "\n";
}

std::string incidents_panel(const WatchView& view, const TerminalStyle& style) {
  std::string text = goodput_text(view.goodput, style);
  const std::string incidents = incidents_text(view.incidents, 200, style);
  text += incidents.empty() ? "  No incident is recorded.\n" : incidents;
  if (!view.incidents.checkpoints.empty()) {
    const SavedCheckpoint& last = view.incidents.checkpoints.back();
    text += fmt::format("  {} checkpoint{} saved, the last at step {}: {}\n", view.incidents.checkpoints.size(),
                        view.incidents.checkpoints.size() == 1 ? "" : "s", last.step, printable(last.path, 200));
  }
  return text;
}

std::string memory_panel(const WatchView& view, const ScreenSize& size, const TerminalStyle& style) {
  const std::string text = memory_text(view.memory, static_cast<std::size_t>(std::max(4, size.rows - 6)), style);
  return text.empty() ? "  No memory is recorded yet.\n" : text;
}

}  // namespace lockstep::report
