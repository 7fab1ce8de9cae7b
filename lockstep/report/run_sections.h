// Parts of a run's page for a terminal, shared by `report` and `watch`. Pure functions; every line ends with '\n' and
// is at most style.width columns, texts from outside are printable. "" where there is nothing to show.
#pragma once

#include <string>

#include "lockstep/report/goodput.h"
#include "lockstep/report/incidents.h"
#include "lockstep/report/memory_terms.h"
#include "lockstep/report/run_report.h"
#include "lockstep/report/standing.h"
#include "lockstep/report/terminal/draw.h"
#include "lockstep/report/waterfall.h"

namespace lockstep::report {

// From peak to achieved, a bar each; losses that are nothing on both sides are left out.
std::string waterfall_text(const Waterfall& waterfall, const TerminalStyle& style);
// A row per rank with its phases; columns that nobody recorded are left out. At most `most` ranks: the slowest first
// where there are more.
std::string ranks_text(const RunFacts& facts, const std::vector<Standing>& standings, std::size_t most,
                       const TerminalStyle& style);
std::string usage_text(const std::vector<UsageOfRank>& usage, std::size_t most, const TerminalStyle& style);
std::string memory_text(const MemoryTerms& memory, std::size_t most_ranks, const TerminalStyle& style);
// The last `most`.
std::string incidents_text(const Incidents& incidents, std::size_t most, const TerminalStyle& style);
std::string goodput_text(const Goodput& goodput, const TerminalStyle& style);

}  // namespace lockstep::report
