// The page about one run, to keep and to hand on: curves, waterfall, ranks, memory, incidents, plan against actual,
// findings, environment, the job, and the command that repeats it. One self-contained HTML file, or a PDF.
#pragma once

#include <optional>
#include <string>

#include "lockstep/diagnose/diagnosis.h"
#include "lockstep/report/document/document.h"
#include "lockstep/report/run_page/plots.h"
#include "lockstep/report/run_report.h"

namespace lockstep::report {

struct RunPage {
  RunReport report;
  HeatMap heat;                                  // empty where ranks recorded no steps
  std::optional<diagnose::Diagnosis> diagnosis;  // nothing: it was not asked for
};

RunPage make_run_page(const telemetry::RunStore& store, const std::string& id,
                      std::optional<diagnose::Diagnosis> diagnosis = std::nullopt);

// What ranks were busy with over the steps, in at most `columns` columns; the `most_ranks` slowest where there are
// more.
HeatMap make_heat_map(const telemetry::RunStore& store, const RunFacts& facts, std::size_t columns,
                      std::size_t most_ranks = 64);

Document run_document(const RunPage& page);

// The commands that do the run again; empty where its job was not recorded.
std::vector<std::string> repeat_commands(const RunFacts& facts);

}  // namespace lockstep::report
