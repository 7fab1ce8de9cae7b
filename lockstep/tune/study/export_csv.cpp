#include "lockstep/tune/study/export_csv.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/planner/rows/csv.h"

namespace lockstep::tune {
namespace {

const std::vector<std::string>& fixed_columns() {
  static const std::vector<std::string> columns{
      "trial",   "purpose",       "set_back", "outcome",     "throughput",     "unit",       "relative_error",
      "samples", "stopped_early", "seconds",  "gpu_seconds", "budget_seconds", "started_at", "message"};
  return columns;
}

std::string cell_of(const Value& value) {
  const std::string text = to_text(value);
  return std::holds_alternative<std::string>(value) ? planner::spreadsheet_text(text) : text;
}

std::vector<std::string> row_of(const Trial& trial, const std::string& unit) {
  std::vector<std::string> row{std::to_string(trial.number),
                               to_string(trial.purpose),
                               planner::spreadsheet_text(trial.set_back_knob),
                               to_string(trial.outcome),
                               measured(trial) ? exact_real(trial.throughput) : "",
                               planner::spreadsheet_text(unit),
                               measured(trial) ? exact_real(trial.relative_error) : "",
                               std::to_string(trial.samples.size()),
                               trial.stopped_early ? "true" : "false",
                               exact_real(trial.seconds),
                               exact_real(trial.gpu_seconds),
                               exact_real(trial.budget_seconds),
                               trial.started_at > 0 ? utc_timestamp(trial.started_at) : "",
                               planner::spreadsheet_text(trial.message)};
  for (const Value& value : trial.config.values) row.push_back(cell_of(value));
  return row;
}

}  // namespace

std::string to_csv(const StoredStudy& study) {
  std::vector<std::string> header = fixed_columns();
  for (const Knob& knob : study.space.knobs()) {
    const bool taken = std::find(fixed_columns().begin(), fixed_columns().end(), knob.name) != fixed_columns().end();
    header.push_back(taken ? fmt::format("knob.{}", knob.name) : planner::spreadsheet_text(knob.name));
  }
  std::string text = planner::csv_line(header);
  for (const Trial& trial : study.trials) text += planner::csv_line(row_of(trial, study.setup.unit));
  return text;
}

}  // namespace lockstep::tune
