// A study of goodput as a terminal page.
#pragma once

#include <string>

#include "lockstep/report/terminal/draw.h"
#include "lockstep/sim/failures/comparison.h"

namespace lockstep::report {

std::string to_text(const sim::GoodputStudy& study, const TerminalStyle& style = {});

}  // namespace lockstep::report
