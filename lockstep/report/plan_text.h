// A plan, a comparison of clusters and a scaling table as a person reads them. Pure functions of what the planner
// found.
#pragma once

#include <string>
#include <vector>

#include "lockstep/planner/compare.h"
#include "lockstep/planner/explain/explain.h"
#include "lockstep/report/terminal/draw.h"

namespace lockstep::report {

struct PlanTextOptions {
  TerminalStyle style;
  bool passes = false;               // the table of search passes
  bool pareto = false;               // the Pareto front
  std::vector<std::string> notices;  // shown under the headline
};

// Headline, memory bars, pipeline timeline, time breakdown, reasons, losers, what-ifs, checkpoint cadence.
std::string to_text(const planner::Explained& explained, const PlanTextOptions& options = {});

// Decision matrix and verdict.
std::string to_text(const planner::Comparison& comparison, const TerminalStyle& style = {});

// Table, plot of throughput and efficiency, and where it falls below 90%.
std::string to_text(const planner::Scaling& scaling, const TerminalStyle& style = {});

}  // namespace lockstep::report
