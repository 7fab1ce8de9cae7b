#include <algorithm>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/run_store_impl.h"

namespace lockstep::telemetry {
namespace {

using nlohmann::json;

constexpr const char* kRunColumns =
    "SELECT id, name, started_at, ended_at, status, world, backend, host, pid, pid_started, job_yaml, versions, "
    "exit_reason, summary FROM runs ";

// Text that we wrote, but a file can be edited: an unreadable value is no reason to hide the run.
json parse_or_null(const std::string& text) {
  json value = json::parse(text, nullptr, false);
  return value.is_discarded() ? json() : value;
}

RunStatus status_of(const std::string& word, const RunInfo& info) {
  const RunStatus status = parse_status(word);
  return status == RunStatus::kRunning && !process_is_alive(info) ? RunStatus::kLost : status;
}

RunRow run_from(const Statement& row) {
  RunRow run;
  run.info.id = row.text(0);
  run.info.name = row.text(1);
  run.info.started_at = row.real(2);
  run.ended_at = row.real(3);
  run.info.world = static_cast<int>(row.integer(5));
  run.info.backend = row.text(6);
  run.info.host = row.text(7);
  run.info.pid = row.integer(8);
  run.info.pid_started = row.integer(9);
  run.info.job_yaml = row.text(10);
  run.info.versions = parse_or_null(row.text(11));
  run.exit_reason = row.text(12);
  run.summary = parse_or_null(row.text(13));
  run.status = status_of(row.text(4), run.info);
  return run;
}

// A query over the points of one metric of one run; bind_series() binds its first two placeholders.
std::string series_sql(const std::string& select, const std::string& tail) {
  return "SELECT " + select +
         " FROM metrics WHERE run = (SELECT number FROM runs WHERE id = ?) "
         "AND name = (SELECT number FROM names WHERE name = ?) " +
         tail;
}

Statement& bind_series(Statement& statement, const std::string& run, const std::string& metric) {
  return statement.bind(0, run).bind(1, metric);
}

}  // namespace

std::vector<RunRow> RunStore::runs(std::size_t limit) const {
  Statement rows(impl_->database, kRunColumns + std::string("ORDER BY started_at DESC, number DESC LIMIT ?"));
  rows.bind(0, static_cast<std::int64_t>(limit));
  std::vector<RunRow> result;
  while (rows.step()) result.push_back(run_from(rows));
  return result;
}

std::optional<RunRow> RunStore::find(const std::string& id) const {
  if (id == "last") {
    auto newest = runs(1);
    return newest.empty() ? std::nullopt : std::optional(std::move(newest.front()));
  }
  Statement rows(impl_->database,
                 kRunColumns + std::string("WHERE substr(id, 1, length(?1)) = ?1 ORDER BY id <> ?1, id LIMIT 2"));
  rows.bind(0, id);
  if (id.empty() || !rows.step()) return std::nullopt;
  RunRow first = run_from(rows);
  if (first.info.id != id && rows.step()) {
    throw bad_input("several runs begin with '" + printable(id) + "': " + first.info.id + ", " + rows.text(0) + ", ...",
                    "give more of the id");
  }
  return first;
}

json RunStore::plan(const std::string& run) const {
  Statement row(impl_->database, "SELECT json FROM plans WHERE run = (SELECT number FROM runs WHERE id = ?)");
  row.bind(0, run);
  return row.step() ? parse_or_null(row.text(0)) : json();
}

std::vector<std::string> RunStore::metric_names(const std::string& run) const {
  // One index probe per name instead of a scan over all points.
  Statement rows(impl_->database,
                 "SELECT name FROM names WHERE EXISTS (SELECT 1 FROM metrics WHERE metrics.name = names.number AND "
                 "metrics.run = (SELECT number FROM runs WHERE id = ?)) ORDER BY name");
  rows.bind(0, run);
  std::vector<std::string> names;
  while (rows.step()) names.push_back(rows.text(0));
  return names;
}

std::vector<Point> RunStore::series(const std::string& run, const std::string& metric, int rank,
                                    std::size_t max_points) const {
  std::int64_t wanted = rank;
  if (rank < 0) {
    Statement lowest(impl_->database, series_sql("rank", "ORDER BY rank LIMIT 1"));
    if (!bind_series(lowest, run, metric).step()) return {};
    wanted = lowest.integer(0);
  }
  Statement counted(impl_->database, series_sql("count(*)", "AND rank = ?"));
  bind_series(counted, run, metric).bind(2, wanted).step();
  const auto count = static_cast<std::size_t>(counted.integer(0));
  const std::size_t kept = max_points == 0 ? count : std::min(count, std::max<std::size_t>(max_points, 2));

  Statement rows(impl_->database, series_sql("step, time_ms, value", "AND rank = ? ORDER BY step"));
  bind_series(rows, run, metric).bind(2, wanted);
  std::vector<Point> points;
  points.reserve(kept);
  for (std::size_t i = 0; rows.step(); ++i) {
    // Row number of the next point that is kept; a run may have grown since it was counted.
    const std::size_t next = kept <= 1 ? points.size() : points.size() * (count - 1) / (kept - 1);
    if (i >= next) points.push_back({rows.integer(0), static_cast<double>(rows.integer(1)) / 1000.0, rows.real(2)});
  }
  return points;
}

std::vector<RankSummary> RunStore::per_rank(const std::string& run, const std::string& metric,
                                            std::int64_t from_step) const {
  Statement rows(impl_->database,
                 "SELECT rank, count(*), avg(v), min(v), max(v), max(step) FROM (" +
                     series_sql("rank, step, CASE WHEN abs(value) <= 1.7976931348623157e308 THEN value END AS v",
                                "AND step >= ?") +
                     ") GROUP BY rank ORDER BY rank");
  bind_series(rows, run, metric).bind(2, from_step);
  std::vector<RankSummary> ranks;
  while (rows.step()) {
    RankSummary summary{
        static_cast<int>(rows.integer(0)), rows.integer(1), rows.real(2), rows.real(3), rows.real(4), rows.integer(5)};
    Statement last(impl_->database, series_sql("value", "AND rank = ? AND step = ?"));
    bind_series(last, run, metric).bind(2, summary.rank).bind(3, summary.last_step).step();
    summary.last = last.real(0);
    ranks.push_back(summary);
  }
  return ranks;
}

std::vector<Event> RunStore::events(const std::string& run, Level at_least) const {
  Statement rows(impl_->database,
                 "SELECT time, level, kind, rank, step, message, data FROM events WHERE run = "
                 "(SELECT number FROM runs WHERE id = ?) AND level >= ? ORDER BY time, number");
  rows.bind(0, run).bind(1, static_cast<int>(at_least));
  std::vector<Event> events;
  while (rows.step()) {
    const auto level = std::clamp<std::int64_t>(rows.integer(1), 0, static_cast<int>(Level::kError));
    events.push_back({rows.real(0), static_cast<Level>(level), rows.text(2), static_cast<int>(rows.integer(3)),
                      rows.integer(4), rows.text(5), parse_or_null(rows.text(6))});
  }
  return events;
}

std::vector<SpanSummary> RunStore::spans(const std::string& run) const {
  Statement rows(
      impl_->database,
      "SELECT names.name, rank, count(*), sum(seconds), max(seconds) FROM spans JOIN names ON names.number = "
      "spans.name WHERE run = (SELECT number FROM runs WHERE id = ?) GROUP BY names.name, rank "
      "ORDER BY names.name, rank");
  rows.bind(0, run);
  std::vector<SpanSummary> spans;
  while (rows.step()) {
    spans.push_back({rows.text(0), static_cast<int>(rows.integer(1)), rows.integer(2), rows.real(3), rows.real(4)});
  }
  return spans;
}

}  // namespace lockstep::telemetry
