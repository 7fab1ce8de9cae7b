// CSV, JSON and JSON lines.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/planner/rows/csv.h"
#include "lockstep/report/export/export.h"

namespace lockstep::report {
namespace {

using nlohmann::json;
using telemetry::Point;
using telemetry::RunRow;
using telemetry::RunStore;

std::string number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return exact_real(value);
}

std::string to_text(const json& value) { return value.dump(-1, ' ', false, json::error_handler_t::replace); }

// All points of one rank step by step: for each step its values, in the order of `metrics`; null where there is none.
struct RankRow {
  std::int64_t step = 0;
  double time = 0.0;
  std::vector<const Point*> values;
};
template <class Take>
void for_each_row(const RunStore& store, const std::string& run, const std::vector<std::string>& metrics, int rank,
                  const ExportSelection& selection, const Take& take) {
  std::vector<std::vector<Point>> series;
  series.reserve(metrics.size());
  for (const std::string& metric : metrics) series.push_back(selected_points(store, run, metric, rank, selection));
  std::vector<std::size_t> at(series.size(), 0);
  while (true) {
    RankRow row{std::numeric_limits<std::int64_t>::max(), 0.0, std::vector<const Point*>(series.size())};
    bool any = false;
    for (std::size_t i = 0; i < series.size(); ++i) {
      if (at[i] == series[i].size()) continue;
      any = true;
      row.step = std::min(row.step, series[i][at[i]].step);
    }
    if (!any) return;
    for (std::size_t i = 0; i < series.size(); ++i) {
      if (at[i] == series[i].size() || series[i][at[i]].step != row.step) continue;
      row.values[i] = &series[i][at[i]++];
      row.time = std::max(row.time, row.values[i]->time);
    }
    take(row);
  }
}

std::vector<int> all_ranks(const RunStore& store, const std::string& run, const std::vector<std::string>& metrics,
                           const ExportSelection& selection) {
  std::set<int> ranks;
  for (const std::string& metric : metrics) {
    for (const int rank : selected_ranks(store, run, metric, selection)) ranks.insert(rank);
  }
  return {ranks.begin(), ranks.end()};
}

json run_to_json(const RunRow& run) {
  return {{"id", run.info.id},
          {"name", run.info.name},
          {"status", telemetry::to_string(run.status)},
          {"started_at", run.info.started_at},
          {"ended_at", run.ended_at},
          {"world", run.info.world},
          {"backend", run.info.backend},
          {"host", run.info.host},
          {"job_yaml", run.info.job_yaml},
          {"versions", run.info.versions},
          {"exit_reason", run.exit_reason},
          {"summary", run.summary},
          {"tags", run.tags}};
}

json event_to_json(const telemetry::Event& event) {
  return {{"time", event.time}, {"level", telemetry::to_string(event.level)},
          {"kind", event.kind}, {"rank", event.rank},
          {"step", event.step}, {"message", event.message},
          {"data", event.data}};
}

// Written column by column: a long series is never a tree in memory.
void write_column(std::ostream& out, const char* name, const std::vector<Point>& points,
                  const std::function<std::string(const Point&)>& cell) {
  out << ",\"" << name << "\":[";
  for (std::size_t i = 0; i < points.size(); ++i) out << (i == 0 ? "" : ",") << cell(points[i]);
  out << "]";
}

}  // namespace

bool ExportSelection::has_rank(int rank) const {
  return ranks.empty() || std::find(ranks.begin(), ranks.end(), rank) != ranks.end();
}

std::vector<std::string> selected_metrics(const RunStore& store, const std::string& run,
                                          const ExportSelection& selection) {
  std::vector<std::string> known = store.metric_names(run);
  if (selection.metrics.empty()) return known;
  for (const std::string& wanted : selection.metrics) {
    if (!std::binary_search(known.begin(), known.end(), wanted))
      throw bad_input(fmt::format("the run has no metric '{}'", printable(wanted)), did_you_mean(wanted, known));
  }
  std::vector<std::string> metrics = selection.metrics;
  std::sort(metrics.begin(), metrics.end());
  metrics.erase(std::unique(metrics.begin(), metrics.end()), metrics.end());
  return metrics;
}

std::vector<int> selected_ranks(const RunStore& store, const std::string& run, const std::string& metric,
                                const ExportSelection& selection) {
  std::vector<int> ranks = store.ranks(run, metric);
  std::erase_if(ranks, [&](int rank) { return !selection.has_rank(rank); });
  return ranks;
}

std::vector<Point> selected_points(const RunStore& store, const std::string& run, const std::string& metric, int rank,
                                   const ExportSelection& selection) {
  constexpr auto kLeast = std::numeric_limits<std::int64_t>::min();
  const std::int64_t after = selection.first_step == kLeast ? kLeast : selection.first_step - 1;
  std::vector<Point> points = store.points_after(run, metric, rank, after, std::numeric_limits<std::size_t>::max());
  while (!points.empty() && points.back().step > selection.last_step) points.pop_back();
  return points;
}

void export_csv(const RunStore& store, const RunRow& run, const ExportSelection& selection, bool is_long,
                std::ostream& out) {
  const std::string& id = run.info.id;
  const auto metrics = selected_metrics(store, id, selection);
  std::vector<std::string> header{"rank", "step", "time"};
  if (is_long) {
    header.insert(header.end(), {"metric", "value"});
  } else {
    for (const std::string& metric : metrics) header.push_back(planner::spreadsheet_text(metric));
  }
  out << planner::csv_line(header);
  if (is_long) {
    for (const std::string& metric : metrics) {
      for (const int rank : selected_ranks(store, id, metric, selection)) {
        for (const Point& point : selected_points(store, id, metric, rank, selection)) {
          out << planner::csv_line({std::to_string(rank), std::to_string(point.step), number(point.time),
                                    planner::spreadsheet_text(metric), number(point.value)});
        }
      }
    }
    return;
  }
  for (const int rank : all_ranks(store, id, metrics, selection)) {
    for_each_row(store, id, metrics, rank, selection, [&](const RankRow& row) {
      std::vector<std::string> fields{std::to_string(rank), std::to_string(row.step), number(row.time)};
      for (const Point* value : row.values) fields.push_back(value ? number(value->value) : "");
      out << planner::csv_line(fields);
    });
  }
}

void export_json(const RunStore& store, const RunRow& run, const ExportSelection& selection, std::ostream& out) {
  const std::string& id = run.info.id;
  out << "{\"schema\":\"lockstep.export/1\",\"run\":" << to_text(run_to_json(run)) << ",\"metrics\":[";
  const char* separator = "\n";
  for (const std::string& metric : selected_metrics(store, id, selection)) {
    for (const int rank : selected_ranks(store, id, metric, selection)) {
      const auto points = selected_points(store, id, metric, rank, selection);
      out << separator << "{\"metric\":" << to_text(metric) << ",\"rank\":" << rank;
      write_column(out, "steps", points, [](const Point& point) { return std::to_string(point.step); });
      write_column(out, "times", points, [](const Point& point) { return exact_real(point.time); });
      write_column(out, "values", points,
                   [](const Point& point) { return std::isfinite(point.value) ? exact_real(point.value) : "null"; });
      out << "}";
      separator = ",\n";
    }
  }
  out << "],\n\"events\":[";
  separator = "\n";
  for (const telemetry::Event& event : store.events(id)) {
    out << std::exchange(separator, ",\n") << to_text(event_to_json(event));
  }
  out << "],\n\"plan\":" << to_text(store.plan(id)) << "}\n";
}

void export_json_lines(const RunStore& store, const RunRow& run, const ExportSelection& selection, std::ostream& out) {
  const std::string& id = run.info.id;
  const auto write = [&](const telemetry::Record& record) { out << telemetry::to_json_line(id, record) << "\n"; };
  write(run.info);
  if (json plan = store.plan(id); !plan.is_null()) write(telemetry::PlanRecord{std::move(plan)});
  const auto metrics = selected_metrics(store, id, selection);
  for (const int rank : all_ranks(store, id, metrics, selection)) {
    for_each_row(store, id, metrics, rank, selection, [&](const RankRow& row) {
      telemetry::MetricBatch batch{rank, row.step, row.time, {}};
      for (std::size_t i = 0; i < metrics.size(); ++i) {
        if (row.values[i]) batch.metrics.push_back({metrics[i], row.values[i]->value});
      }
      write(batch);
    });
  }
  for (const std::int64_t step : store.span_steps(id)) {
    if (!selection.has_step(step)) continue;
    for (const telemetry::SpanBatch& batch : store.spans(id, step, step)) {
      if (selection.has_rank(batch.rank)) write(batch);
    }
  }
  for (const telemetry::Event& event : store.events(id)) write(event);
  const bool ended = run.ended_at > 0 && run.status != telemetry::RunStatus::kLost;
  if (ended) write(telemetry::RunEnd{run.ended_at, run.status, run.exit_reason, run.summary});
}

}  // namespace lockstep::report
