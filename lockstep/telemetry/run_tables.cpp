// Runs in the SQLite store.
#include <algorithm>
#include <limits>
#include <map>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/telemetry/lines_file.h"
#include "lockstep/telemetry/run_store.h"
#include "lockstep/telemetry/series_tables.h"
#include "lockstep/telemetry/span_budget.h"
#include "lockstep/telemetry/span_codec.h"
#include "lockstep/telemetry/sqlite.h"
#include "lockstep/telemetry/tags.h"

namespace lockstep::telemetry {
namespace {

using nlohmann::json;

constexpr const char* kRunColumns =
    "SELECT id, name, started_at, ended_at, status, world, backend, host, pid, pid_started, job_yaml, versions, "
    "exit_reason, summary FROM runs ";

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
  run.status = status_now(parse_status(row.text(4)), run.info);
  return run;
}

constexpr const char* kEventColumns =
    "SELECT time, level, kind, rank, step, message, data FROM events "
    "WHERE run = (SELECT number FROM runs WHERE id = ?1) ";

std::vector<Event> events_from(Statement& rows) {
  std::vector<Event> events;
  while (rows.step()) {
    const auto level = std::clamp<std::int64_t>(rows.integer(1), 0, static_cast<int>(Level::kError));
    events.push_back({rows.real(0), static_cast<Level>(level), rows.text(2), static_cast<int>(rows.integer(3)),
                      rows.integer(4), rows.text(5), parse_or_null(rows.text(6))});
  }
  return events;
}

class RunTables : public RunStore {
 public:
  explicit RunTables(Database opened)
      : database_(std::move(opened)),
        series_(database_),
        insert_event_(database_,
                      "INSERT OR IGNORE INTO events (run, time, rank, step, level, kind, message, data) "
                      "VALUES (?,?,?,?,?,?,?,?)"),
        insert_spans_(database_, "INSERT OR REPLACE INTO spans (run, step, rank, time, data) VALUES (?,?,?,?,?)") {}

  void write(const std::string& run, std::span<const Record> batch) override {
    Transaction transaction(database_);
    try {
      for (const Record& record : batch)
        std::visit([&](const auto& value) { insert(number_of_run(run), value); }, record);
      transaction.commit();
    } catch (...) {  // a rollback may have undone the numbers
      names_.clear();
      runs_.clear();
      span_budgets_.clear();
      series_.forget();
      throw;
    }
  }

  std::vector<RunRow> runs(std::size_t limit, const std::string& beginning) const override {
    Statement rows(database_, kRunColumns + std::string("WHERE substr(id, 1, length(?1)) = ?1 "
                                                        "ORDER BY started_at DESC, number DESC LIMIT ?2"));
    rows.bind(0, beginning).bind(1, static_cast<std::int64_t>(limit));
    std::vector<RunRow> result;
    while (rows.step()) result.push_back(run_from(rows));
    for (RunRow& row : result) row.tags = tags_of(row.info.id);
    return result;
  }

  void set_tags(const std::string& run, const std::vector<std::string>& tags) override {
    const std::vector<std::string> sound = checked_tags(tags);
    Transaction transaction(database_);
    const auto number = find_run(run);
    if (!number) throw bad_input("the run store has no run '" + printable(run) + "'");
    Statement(database_, "DELETE FROM tags WHERE run = ?").bind(0, *number).run();
    for (const std::string& tag : sound)
      Statement(database_, "INSERT INTO tags (run, tag) VALUES (?,?)").bind(0, *number).bind(1, tag).run();
    transaction.commit();
  }

  json plan(const std::string& run) const override {
    Statement row(database_, "SELECT json FROM plans WHERE run = (SELECT number FROM runs WHERE id = ?)");
    row.bind(0, run);
    return row.step() ? parse_or_null(row.text(0)) : json();
  }

  std::vector<int> ranks(const std::string& run, const std::string& metric) const override {
    const auto key = key_of(run, metric, 0);
    return key ? series_.ranks(key->run, key->name) : std::vector<int>();
  }

  std::vector<Point> points(const std::string& run, const std::string& metric, int rank) const override {
    return points_after(run, metric, rank, std::numeric_limits<std::int64_t>::min(),
                        std::numeric_limits<std::size_t>::max());
  }

  std::optional<std::int64_t> last_step(const std::string& run, const std::string& metric, int rank) const override {
    const auto key = key_of(run, metric, rank);
    return key ? series_.last_step(*key) : std::nullopt;
  }

  std::vector<Event> events(const std::string& run, Level at_least) const override {
    Statement rows(database_, kEventColumns + std::string("AND level >= ?2 ORDER BY time, number"));
    rows.bind(0, run).bind(1, static_cast<int>(at_least));
    return events_from(rows);
  }

  std::vector<Event> events_after(const std::string& run, double after, std::string_view kind) const override {
    Statement rows(database_,
                   kEventColumns + std::string("AND time > ?2 AND (?3 = '' OR kind = ?3) ORDER BY time, number"));
    rows.bind(0, run).bind(1, after).bind(2, kind);
    return events_from(rows);
  }

  std::vector<std::string> metric_names(const std::string& run) const override {
    const auto number = find_run(run);
    std::vector<std::string> names;
    if (!number) return names;
    Statement word(database_, "SELECT name FROM names WHERE number = ?");
    for (const std::int64_t name : series_.names(*number)) {
      if (word.bind(0, name).step()) names.push_back(word.text(0));
      word.reset();
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  std::vector<Point> points_after(const std::string& run, const std::string& metric, int rank, std::int64_t after_step,
                                  std::size_t limit) const override {
    const auto key = key_of(run, metric, rank);
    return key ? series_.points(*key, after_step, limit) : std::vector<Point>();
  }

  std::vector<Bucket> buckets(const std::string& run, const std::string& metric, int rank, std::int64_t first,
                              std::int64_t last, std::size_t count) const override {
    BucketGrid grid(first, last, count);
    if (const auto key = key_of(run, metric, rank)) series_.fill(grid, *key);
    return grid.take();
  }

  std::vector<std::int64_t> span_steps(const std::string& run, int rank) const override {
    Statement rows(database_,
                   "SELECT DISTINCT step FROM spans WHERE run = (SELECT number FROM runs WHERE id = ?1) "
                   "AND (?2 < 0 OR rank = ?2) ORDER BY step");
    rows.bind(0, run).bind(1, rank);
    std::vector<std::int64_t> steps;
    while (rows.step()) steps.push_back(rows.integer(0));
    return steps;
  }

  std::vector<SpanBatch> spans(const std::string& run, std::int64_t first, std::int64_t last, int rank) const override {
    Statement rows(database_,
                   "SELECT step, rank, time, data FROM spans WHERE run = (SELECT number FROM runs WHERE id = ?1) "
                   "AND step BETWEEN ?2 AND ?3 AND (?4 < 0 OR rank = ?4) ORDER BY step, rank");
    rows.bind(0, run).bind(1, first).bind(2, last).bind(3, rank);
    std::vector<SpanBatch> batches;
    while (rows.step()) {
      SpanBatch& batch = batches.emplace_back();
      batch.step = rows.integer(0);
      batch.rank = static_cast<int>(rows.integer(1));
      batch.time = rows.real(2);
      decode_spans(rows.view(3), batch);
    }
    return batches;
  }

 private:
  std::optional<std::int64_t> find_run(const std::string& id) const {
    Statement find(database_, "SELECT number FROM runs WHERE id = ?");
    return find.bind(0, id).step() ? std::optional(find.integer(0)) : std::nullopt;
  }

  std::optional<SeriesTables::Key> key_of(const std::string& run, const std::string& metric, int rank) const {
    Statement find(database_, "SELECT runs.number, names.number FROM runs, names WHERE runs.id = ? AND names.name = ?");
    if (!find.bind(0, run).bind(1, metric).step()) return std::nullopt;
    return SeriesTables::Key{find.integer(0), find.integer(1), rank};
  }

  std::vector<std::string> tags_of(const std::string& run) const {
    Statement rows(database_, "SELECT tag FROM tags WHERE run = (SELECT number FROM runs WHERE id = ?) ORDER BY tag");
    rows.bind(0, run);
    std::vector<std::string> tags;
    while (rows.step()) tags.push_back(rows.text(0));
    return tags;
  }

  // Numbers of names and runs, made when they are new.
  std::int64_t number_of_name(const std::string& name) {
    if (const auto known = names_.find(name); known != names_.end()) return known->second;
    Statement(database_, "INSERT OR IGNORE INTO names (name) VALUES (?)").bind(0, name).run();
    Statement find(database_, "SELECT number FROM names WHERE name = ?");
    find.bind(0, name).step();
    return names_[name] = find.integer(0);
  }

  std::int64_t number_of_run(const std::string& id) {
    if (const auto known = runs_.find(id); known != runs_.end()) return known->second;
    Statement(database_, "INSERT OR IGNORE INTO runs (id, name, started_at) VALUES (?, '', ?)")
        .bind(0, id)
        .bind(1, unix_seconds())
        .run();
    Statement find(database_, "SELECT number FROM runs WHERE id = ?");
    find.bind(0, id).step();
    return runs_[id] = find.integer(0);
  }

  void insert(std::int64_t run, const RunInfo& info) {
    // pid 0 marks a run that only records of ranks or a submitter have made so far; the first RunInfo of a process
    // stays, until the run has ended and is started again.
    Statement(database_,
              "UPDATE runs SET name=?, started_at=CASE WHEN pid=0 THEN ? ELSE started_at END, world=?, backend=?, "
              "host=?, pid=?, pid_started=?, job_yaml=?, versions=?, status='running', ended_at=0, exit_reason='' "
              "WHERE number=? AND (pid=0 OR (status<>'running' AND ?<>0))")
        .bind(0, info.name)
        .bind(1, info.started_at)
        .bind(2, info.world)
        .bind(3, info.backend)
        .bind(4, info.host)
        .bind(5, info.pid)
        .bind(6, info.pid_started)
        .bind(7, info.job_yaml)
        .bind(8, one_line(info.versions))
        .bind(9, run)
        .bind(10, info.pid)
        .run();
  }

  void insert(std::int64_t run, const PlanRecord& record) {
    Statement(database_, "INSERT OR REPLACE INTO plans (run, json) VALUES (?,?)")
        .bind(0, run)
        .bind(1, one_line(record.plan))
        .run();
  }

  void insert(std::int64_t run, const MetricBatch& batch) {
    values_.clear();
    for (const Metric& metric : batch.metrics) values_.emplace_back(number_of_name(metric.name), metric.value);
    series_.add(run, batch.rank, batch.step, batch.time, values_);
  }

  void insert(std::int64_t run, const SpanBatch& batch) {
    const std::string data = encode_spans(batch);
    insert_spans_.bind(0, run).bind(1, batch.step).bind(2, batch.rank).bind(3, batch.time).bind_bytes(4, data).run();
    SpanBudget& budget = span_budget(run, batch.rank);
    budget.add(batch.step, static_cast<std::int64_t>(data.size()));
    for (const std::int64_t step : budget.take_surplus(span_budget_bytes(world_of(run)))) {
      Statement(database_, "DELETE FROM spans WHERE run = ? AND step = ? AND rank = ?")
          .bind(0, run)
          .bind(1, step)
          .bind(2, batch.rank)
          .run();
    }
  }

  // Asked again while only one is known: ranks may be faster than the process that tells.
  int world_of(std::int64_t run) {
    int& world = worlds_.try_emplace(run, 1).first->second;
    if (world > 1) return world;
    Statement row(database_, "SELECT world FROM runs WHERE number = ?");
    if (row.bind(0, run).step()) world = static_cast<int>(row.integer(0));
    return world;
  }

  SpanBudget& span_budget(std::int64_t run, int rank) {
    if (const auto known = span_budgets_.find({run, rank}); known != span_budgets_.end()) return known->second;
    SpanBudget budget;
    Statement rows(database_, "SELECT step, length(data) FROM spans WHERE run = ? AND rank = ?");
    rows.bind(0, run).bind(1, rank);
    while (rows.step()) budget.add(rows.integer(0), rows.integer(1));
    return span_budgets_.emplace(std::pair(run, rank), std::move(budget)).first->second;
  }

  void insert(std::int64_t run, const Event& event) {
    insert_event_.bind(0, run)
        .bind(1, event.time)
        .bind(2, event.rank)
        .bind(3, event.step)
        .bind(4, static_cast<int>(event.level))
        .bind(5, event.kind)
        .bind(6, event.message)
        .bind(7, one_line(event.data))
        .run();
  }

  void insert(std::int64_t run, const RunEnd& end) {
    Statement(database_, "UPDATE runs SET ended_at=?, status=?, exit_reason=?, summary=? WHERE number=?")
        .bind(0, end.time)
        .bind(1, to_string(end.status))
        .bind(2, end.exit_reason)
        .bind(3, one_line(end.summary))
        .bind(4, run)
        .run();
    series_.pack(run);
  }

  mutable Database database_;  // reading opens snapshots
  // Those that run per record are kept prepared; the others run a few times per run.
  SeriesTables series_;
  Statement insert_event_;
  Statement insert_spans_;
  std::map<std::string, std::int64_t> names_;
  std::map<std::string, std::int64_t> runs_;
  std::map<std::pair<std::int64_t, int>, SpanBudget> span_budgets_;  // by run and rank
  std::map<std::int64_t, int> worlds_;                               // by run
  std::vector<SeriesTables::Value> values_;
};

}  // namespace

bool has_sqlite() { return true; }

std::unique_ptr<RunStore> make_sqlite_run_store(const std::filesystem::path& file, bool create,
                                                double busy_timeout_seconds) {
  return std::make_unique<RunTables>(open_store(file, create, busy_timeout_seconds));
}

}  // namespace lockstep::telemetry
