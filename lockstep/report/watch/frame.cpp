#include "lockstep/report/watch/frame.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/report/run_sections.h"
#include "lockstep/report/watch/panels.h"

namespace lockstep::report {
namespace {

using telemetry::RunStatus;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines = split(text, '\n');
  if (!lines.empty() && lines.back().empty()) lines.pop_back();
  return lines;
}

std::string title_line(const WatchView& view, const ScreenSize& size, const TerminalStyle& style) {
  const telemetry::RunRow& run = view.facts.run;
  const Ink ink = run.status == RunStatus::kDone      ? Ink::kGreen
                  : run.status == RunStatus::kRunning ? Ink::kCyan
                                                      : Ink::kRed;
  const std::string status = telemetry::to_string(run.status);
  const std::string elapsed = format_seconds(std::round(view.goodput.elapsed_seconds));
  const int room = std::max(10, size.columns - static_cast<int>(status.size() + elapsed.size()) - 6);
  const std::string name = clipped(printable(run.info.id, 200), room);
  return inked(name, Ink::kBold, style) + "  " + inked(status, ink, style) + "  " + inked(elapsed, Ink::kDim, style);
}

std::string tabs_line(WatchTab active, const ScreenSize& size, const TerminalStyle& style) {
  std::string text;
  for (int i = 0; i < kWatchTabs; ++i) {
    const auto tab = static_cast<WatchTab>(i);
    const std::string name = fmt::format("{} {}", i + 1, to_string(tab));
    const bool is_active = tab == active;
    // Brackets where there is no colour to tell it by.
    text += is_active ? inked(style.colour ? " " + name + " " : "[" + name + "]", Ink::kCyan, style)
                      : inked(" " + name + " ", Ink::kDim, style);
    if (size.columns >= 90) text += " ";
  }
  return text;
}

std::string body_of(const WatchView& view, WatchTab tab, const ScreenSize& size, const TerminalStyle& style) {
  switch (tab) {
    case WatchTab::kOverview:
      return overview_panel(view, size, style);
    case WatchTab::kWaterfall:
      return waterfall_panel(view, style);
    case WatchTab::kRanks:
      return ranks_panel(view, size, style);
    case WatchTab::kTimeline:
      return timeline_panel(view, size, style);
    case WatchTab::kIncidents:
      return incidents_panel(view, style);
    case WatchTab::kMemory:
      return memory_panel(view, size, style);
  }
  return "";
}

}  // namespace

std::string clipped(const std::string& text, int columns) {
  if (telemetry::display_width(text) <= columns) return text;
  std::string out;
  bool coloured = false;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '\033') {
      const std::size_t end = text.find('m', i);
      if (end == std::string::npos) break;
      const std::string code = text.substr(i, end - i + 1);
      coloured = code != "\033[0m";
      out += code;
      i = end + 1;
      continue;
    }
    std::size_t next = i + 1;
    while (next < text.size() && (static_cast<unsigned char>(text[next]) & 0xc0) == 0x80) ++next;
    const std::string longer = out + text.substr(i, next - i);
    if (telemetry::display_width(longer) > columns) break;
    out = longer;
    i = next;
  }
  return coloured ? out + "\033[0m" : out;
}

std::vector<std::string> watch_frame(const WatchView& view, WatchTab tab, const ScreenSize& size,
                                     const TerminalStyle& style, int scroll) {
  TerminalStyle inner = style;
  inner.width = size.columns;
  const int room = std::max(1, size.rows - 4);
  std::vector<std::string> body = lines_of(body_of(view, tab, {size.columns, room}, inner));
  const int hidden = std::max(0, static_cast<int>(body.size()) - room);
  scroll = std::clamp(scroll, 0, hidden);
  std::vector<std::string> lines{title_line(view, size, inner), tabs_line(tab, size, inner), ""};
  for (int i = 0; i < room; ++i) {
    const auto at = static_cast<std::size_t>(i) + static_cast<std::size_t>(scroll);
    lines.push_back(at < body.size() ? body[at] : "");
  }
  std::string foot = "q quit   1-6 or arrows: pages";
  if (hidden > 0) foot += fmt::format("   up/down: {} more lines", hidden - scroll);
  lines.push_back(inked(foot, Ink::kDim, inner));
  lines.resize(static_cast<std::size_t>(std::max(1, size.rows)));
  for (std::string& line : lines) line = clipped(line, size.columns);
  return lines;
}

std::string watch_page(const WatchView& view, WatchTab tab, const ScreenSize& size, const TerminalStyle& style) {
  TerminalStyle inner = style;
  inner.width = size.columns;
  std::string text = clipped(title_line(view, size, inner), size.columns) + "\n\n";
  for (const std::string& line : lines_of(body_of(view, tab, size, inner))) text += clipped(line, size.columns) + "\n";
  return text;
}

}  // namespace lockstep::report
