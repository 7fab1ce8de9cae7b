#include "lockstep/telemetry/run_store.h"

#include <chrono>
#include <cmath>
#include <fstream>
#include <set>
#include <thread>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/file.h"
#include "lockstep/telemetry/run_store_impl.h"

namespace lockstep::telemetry {
namespace {

// A line longer than this is no record of ours (the largest is a run's plan and job file).
constexpr std::size_t kMaxLineBytes = 64u << 20;

// WAL lets readers and the writer work at the same time, and a killed process leaves nothing to repair: what it had not
// committed is simply not there. Changing to WAL needs the file for itself for a moment, which the busy timeout does
// not cover, so it is tried until the time is up.
void use_wal(Database& database, double timeout_seconds) {
  const Deadline deadline = Deadline::after(timeout_seconds);
  while (true) {
    try {
      if (database.query_text("PRAGMA journal_mode") != "wal") database.query_text("PRAGMA journal_mode = WAL");
      break;
    } catch (const UserError& error) {
      if (error.code() == ExitCode::kUsage || deadline.expired()) throw;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
  }
  // In WAL mode NORMAL survives any crash of a process; a power cut may cost the last transactions, never the file.
  database.execute("PRAGMA synchronous = NORMAL");
}

std::string dump(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

RunStore::Impl::Impl(Database opened)
    : database(std::move(opened)),
      insert_metric(database,
                    "INSERT INTO metrics (run, name, rank, step, time_ms, value) VALUES (?,?,?,?,?,?) "
                    "ON CONFLICT DO UPDATE SET time_ms = excluded.time_ms, value = excluded.value"),
      insert_event(database,
                   "INSERT OR IGNORE INTO events (run, time, rank, step, level, kind, message, data) "
                   "VALUES (?,?,?,?,?,?,?,?)") {}

void RunStore::Impl::forget() {
  names.clear();
  runs.clear();
}

std::int64_t RunStore::Impl::name_number(const std::string& name) {
  if (const auto known = names.find(name); known != names.end()) return known->second;
  Statement(database, "INSERT OR IGNORE INTO names (name) VALUES (?)").bind(0, name).run();
  Statement find(database, "SELECT number FROM names WHERE name = ?");
  find.bind(0, name).step();
  return names[name] = find.integer(0);
}

std::int64_t RunStore::Impl::run_number(const std::string& id) {
  if (const auto known = runs.find(id); known != runs.end()) return known->second;
  Statement(database, "INSERT OR IGNORE INTO runs (id, name, started_at) VALUES (?, '', ?)")
      .bind(0, id)
      .bind(1, unix_seconds())
      .run();
  Statement find(database, "SELECT number FROM runs WHERE id = ?");
  find.bind(0, id).step();
  return runs[id] = find.integer(0);
}

void RunStore::Impl::insert(const std::string& id, const Record& record) {
  const std::int64_t run = run_number(id);
  std::visit([&](const auto& value) { insert(run, value); }, record);
}

void RunStore::Impl::insert(std::int64_t run, const RunInfo& info) {
  // pid 0 marks a run that only records of ranks have made so far; the first RunInfo stays.
  Statement(database,
            "UPDATE runs SET name=?, started_at=?, world=?, backend=?, host=?, pid=?, pid_started=?, job_yaml=?, "
            "versions=? WHERE number=? AND pid=0")
      .bind(0, info.name)
      .bind(1, info.started_at)
      .bind(2, info.world)
      .bind(3, info.backend)
      .bind(4, info.host)
      .bind(5, info.pid)
      .bind(6, info.pid_started)
      .bind(7, info.job_yaml)
      .bind(8, dump(info.versions))
      .bind(9, run)
      .run();
}

void RunStore::Impl::insert(std::int64_t run, const PlanRecord& record) {
  Statement(database, "INSERT OR REPLACE INTO plans (run, json) VALUES (?,?)")
      .bind(0, run)
      .bind(1, dump(record.plan))
      .run();
}

void RunStore::Impl::insert(std::int64_t run, const MetricBatch& batch) {
  const auto time_ms = static_cast<std::int64_t>(std::llround(batch.time * 1000.0));
  for (const Metric& metric : batch.metrics) {
    insert_metric.bind(0, run)
        .bind(1, name_number(metric.name))
        .bind(2, batch.rank)
        .bind(3, batch.step)
        .bind(4, time_ms)
        .bind(5, metric.value)
        .run();
  }
}

void RunStore::Impl::insert(std::int64_t run, const Span& span) {
  Statement(database, "INSERT OR REPLACE INTO spans (run, name, rank, start, step, seconds) VALUES (?,?,?,?,?,?)")
      .bind(0, run)
      .bind(1, name_number(span.name))
      .bind(2, span.rank)
      .bind(3, span.start)
      .bind(4, span.step)
      .bind(5, span.seconds)
      .run();
}

void RunStore::Impl::insert(std::int64_t run, const Event& event) {
  insert_event.bind(0, run)
      .bind(1, event.time)
      .bind(2, event.rank)
      .bind(3, event.step)
      .bind(4, static_cast<int>(event.level))
      .bind(5, event.kind)
      .bind(6, event.message)
      .bind(7, dump(event.data))
      .run();
}

void RunStore::Impl::insert(std::int64_t run, const RunEnd& end) {
  Statement(database, "UPDATE runs SET ended_at=?, status=?, exit_reason=?, summary=? WHERE number=?")
      .bind(0, end.time)
      .bind(1, to_string(end.status))
      .bind(2, end.exit_reason)
      .bind(3, dump(end.summary))
      .bind(4, run)
      .run();
}

RunStore::RunStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RunStore::RunStore(RunStore&&) noexcept = default;
RunStore& RunStore::operator=(RunStore&&) noexcept = default;
RunStore::~RunStore() = default;

Database open_store(const std::filesystem::path& path, bool create, double busy_timeout_seconds) {
  if (create) {
    if (path.has_parent_path()) make_folders(path.parent_path());
  } else if (!std::filesystem::exists(path)) {
    throw environment_error("there is no run store yet", "run something first, or check LOCKSTEP_HOME",
                            {path.string()});
  }
  Database database(path, create, busy_timeout_seconds);
  // Looked at before anything is changed: WAL mode is written into the file.
  migrate(database);
  use_wal(database, busy_timeout_seconds);
  return database;
}

RunStore RunStore::open(const std::filesystem::path& path, bool create, double busy_timeout_seconds) {
  return RunStore(std::make_unique<Impl>(open_store(path, create, busy_timeout_seconds)));
}

void RunStore::write(const std::string& run, std::span<const Record> batch) {
  Transaction transaction(impl_->database);
  try {
    for (const Record& record : batch) impl_->insert(run, record);
    transaction.commit();
  } catch (...) {
    impl_->forget();
    throw;
  }
}

RunStore::Import RunStore::import_json_lines(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw environment_error("cannot be opened", "check the path", {path.string()});
  Import result;
  std::set<std::string> runs;
  Transaction transaction(impl_->database);
  try {
    std::string line;
    for (int number = 1; std::getline(file, line); ++number) {
      const bool last_and_torn = file.eof();  // no newline: whoever wrote it was killed
      const SourcePlace place{path.string(), number};
      if (line.size() > kMaxLineBytes)
        throw bad_input("a line of more than 64 MiB", "this is no record of a run", place);
      if (line.empty()) continue;
      if (last_and_torn) {
        result.torn_end = true;
        break;
      }
      try {
        const ParsedLine parsed = parse_json_line(line);
        impl_->insert(parsed.run, parsed.record);
        runs.insert(parsed.run);
        ++result.lines;
      } catch (const UserError& error) {
        throw bad_input(error.what(), "remove the line or the file", place);
      }
    }
    transaction.commit();
  } catch (...) {
    impl_->forget();
    throw;
  }
  result.runs.assign(runs.begin(), runs.end());
  return result;
}

std::string RunStore::integrity() const { return impl_->database.query_text("PRAGMA integrity_check"); }

}  // namespace lockstep::telemetry
