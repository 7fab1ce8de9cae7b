// Runs for other tools: tables (CSV, JSON, Parquet), TensorBoard's event files, traces (docs/reference/export.md).
//
// Everything is read from a RunStore and written as it is read; nothing holds a whole run in memory. Names and texts of
// a run are data: whatever they hold, they stay inside of their cell, string or file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <ostream>
#include <string>
#include <vector>

#include "lockstep/telemetry/overlap.h"
#include "lockstep/telemetry/run_store.h"

namespace lockstep::report {

// What of a run is exported.
struct ExportSelection {
  std::vector<std::string> metrics;  // none: all
  std::vector<int> ranks;            // none: all
  std::int64_t first_step = 0;
  std::int64_t last_step = std::numeric_limits<std::int64_t>::max();

  bool has_rank(int rank) const;
  bool has_step(std::int64_t step) const { return step >= first_step && step <= last_step; }
};

// Of the run, as selected, sorted. UserError (bad input) for a metric or a rank that the run has not recorded.
std::vector<std::string> selected_metrics(const telemetry::RunStore& store, const std::string& run,
                                          const ExportSelection& selection);
std::vector<int> selected_ranks(const telemetry::RunStore& store, const std::string& run, const std::string& metric,
                                const ExportSelection& selection);
std::vector<telemetry::Point> selected_points(const telemetry::RunStore& store, const std::string& run,
                                              const std::string& metric, int rank, const ExportSelection& selection);

// One row per rank and step with a column for each metric, or (`is_long`) one row per point. RFC 4180, header line.
void export_csv(const telemetry::RunStore& store, const telemetry::RunRow& run, const ExportSelection& selection,
                bool is_long, std::ostream& out);
// One document, lockstep.export/1.
void export_json(const telemetry::RunStore& store, const telemetry::RunRow& run, const ExportSelection& selection,
                 std::ostream& out);
// The records of the run as JSON lines (docs/reference/run-store.md), which `lockstep import` reads.
void export_json_lines(const telemetry::RunStore& store, const telemetry::RunRow& run, const ExportSelection& selection,
                       std::ostream& out);
// Columns rank, step, time (UTC), metric, value; one row per point.
void export_parquet(const telemetry::RunStore& store, const telemetry::RunRow& run, const ExportSelection& selection,
                    std::ostream& out);

// Traces are of the steps whose spans are kept. At most this many bytes; the last steps are left out beyond it.
inline constexpr std::int64_t kMostTraceBytes = 200'000'000;

struct TraceResult {
  std::vector<std::int64_t> steps;  // that are in it
  bool cut = false;                 // more were selected
  struct RankOverlap {
    int rank = 0;
    telemetry::Overlap overlap;
  };
  std::vector<RankOverlap> overlaps;  // by rank
};

// Chrome's trace format, all ranks in one file: a process per rank, a track per lane and group, flows from sends to
// receives and from the last member of a collective to the others. Clocks of ranks are aligned by the ends of
// collectives.
TraceResult export_perfetto(const telemetry::RunStore& store, const telemetry::RunRow& run,
                            const ExportSelection& selection, std::ostream& out,
                            std::int64_t most_bytes = kMostTraceBytes);
// One file per rank, as PyTorch's profiler writes them, for what reads those (HTA): computing and communication are
// kernels on two streams. Makes folder/rank-00003.json.
TraceResult export_kineto(const telemetry::RunStore& store, const telemetry::RunRow& run,
                          const ExportSelection& selection, const std::filesystem::path& folder,
                          std::int64_t most_bytes = kMostTraceBytes);

}  // namespace lockstep::report
