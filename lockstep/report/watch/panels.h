// The pages of `lockstep watch` between its title and its last line. Lines end with '\n'; at most style.width columns.
#pragma once

#include <string>

#include "lockstep/report/watch/frame.h"

namespace lockstep::report {

// Figures, then curves with the predicted band, as many as there is room for.
std::string overview_panel(const WatchView& view, const ScreenSize& size, const TerminalStyle& style);
std::string waterfall_panel(const WatchView& view, const TerminalStyle& style);
std::string ranks_panel(const WatchView& view, const ScreenSize& size, const TerminalStyle& style);
// What ranks did when in the newest step that has spans: a letter per kind.
std::string timeline_panel(const WatchView& view, const ScreenSize& size, const TerminalStyle& style);
std::string incidents_panel(const WatchView& view, const TerminalStyle& style);
std::string memory_panel(const WatchView& view, const ScreenSize& size, const TerminalStyle& style);

}  // namespace lockstep::report
