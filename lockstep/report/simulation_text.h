// A simulated step as a terminal page: how long, where the time goes, and when which stage works.
#pragma once

#include <string>

#include "lockstep/report/terminal/draw.h"
#include "lockstep/sim/step/study.h"

namespace lockstep::report {

std::string to_text(const sim::StepStudy& study, const TerminalStyle& style = {});

}  // namespace lockstep::report
