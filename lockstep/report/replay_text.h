// A replayed trace, and a replayed run, as a terminal page.
#pragma once

#include <string>

#include "lockstep/diagnose/foreign/replayed_trace.h"
#include "lockstep/diagnose/replayed_run.h"
#include "lockstep/report/terminal/draw.h"

namespace lockstep::report {

std::string to_text(const diagnose::ReplayedTrace& replayed, const TerminalStyle& style = {});
std::string to_text(const diagnose::ReplayedRun& replayed, const TerminalStyle& style = {});

}  // namespace lockstep::report
