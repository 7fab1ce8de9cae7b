// One screen of `lockstep watch` as text. Pure functions: the same view, tab and size give the same lines.
#pragma once

#include <string>
#include <vector>

#include "lockstep/base/enum_names.h"
#include "lockstep/report/terminal/draw.h"
#include "lockstep/report/watch/view.h"

namespace lockstep::report {

enum class WatchTab { kOverview = 0, kWaterfall, kRanks, kTimeline, kIncidents, kMemory };
inline constexpr int kWatchTabs = 6;
constexpr auto names_of(WatchTab) {
  return enum_names<WatchTab::kMemory>("overview", "waterfall", "ranks", "timeline", "incidents", "memory");
}

struct ScreenSize {
  int columns = 80, rows = 24;
};

// Exactly `rows` lines of at most `columns` columns, without line breaks; colours only where the style has them, and
// never a control character that came from the run. `scroll`: lines of the tab that are above the screen.
std::vector<std::string> watch_frame(const WatchView& view, WatchTab tab, const ScreenSize& size,
                                     const TerminalStyle& style, int scroll = 0);
// The same, as long as it is and without the bars at top and bottom: for `--once` and for pipes.
std::string watch_page(const WatchView& view, WatchTab tab, const ScreenSize& size, const TerminalStyle& style);

// `text` cut to `columns` columns; colours are kept and closed.
std::string clipped(const std::string& text, int columns);

}  // namespace lockstep::report
