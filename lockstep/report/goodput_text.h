// A study of goodput as a terminal page.
#pragma once

#include <string>
#include <vector>

#include "lockstep/report/terminal/draw.h"
#include "lockstep/sim/failures/comparison.h"
#include "lockstep/sim/failures/named.h"

namespace lockstep::report {

std::string to_text(const sim::GoodputStudy& study, const TerminalStyle& style = {});
// Published runs side by side, one column each.
std::string to_text(const std::vector<sim::PublishedRun>& runs, const TerminalStyle& style = {});

}  // namespace lockstep::report
