#include <array>
#include <utility>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/telemetry/run_store.h"
#include "lockstep/telemetry/series_tables.h"
#include "lockstep/telemetry/sqlite.h"

namespace lockstep::telemetry {
namespace {

// "LKST": tells our files from other programs' (PRAGMA application_id).
constexpr std::int64_t kApplicationId = 0x4c4b5354;

// Migration i brings version i to i + 1. Append only: stores out there have run the earlier ones.
constexpr std::array<const char*, kSchemaVersion> kMigrations = {
    // 1: runs, plans, metrics, events.
    R"sql(
      CREATE TABLE runs (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, started_at REAL NOT NULL,
        ended_at REAL NOT NULL DEFAULT 0, status TEXT NOT NULL DEFAULT 'running', world INTEGER NOT NULL DEFAULT 1,
        backend TEXT NOT NULL DEFAULT '', host TEXT NOT NULL DEFAULT '', pid INTEGER NOT NULL DEFAULT 0,
        job_yaml TEXT NOT NULL DEFAULT '', versions TEXT NOT NULL DEFAULT '{}', exit_reason TEXT NOT NULL DEFAULT '',
        summary TEXT NOT NULL DEFAULT '{}');
      CREATE INDEX runs_by_start ON runs (started_at);
      CREATE TABLE plans (run INTEGER PRIMARY KEY, json TEXT NOT NULL);
      CREATE TABLE names (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
      -- Clustered by series: reading a curve is one range scan; value NULL is NaN.
      CREATE TABLE metrics (
        run INTEGER NOT NULL, name INTEGER NOT NULL, rank INTEGER NOT NULL, step INTEGER NOT NULL,
        time_ms INTEGER NOT NULL, value REAL, PRIMARY KEY (run, name, rank, step)) WITHOUT ROWID;
      CREATE TABLE events (
        number INTEGER PRIMARY KEY, run INTEGER NOT NULL, time REAL NOT NULL, rank INTEGER NOT NULL,
        step INTEGER NOT NULL, level INTEGER NOT NULL, kind TEXT NOT NULL, message TEXT NOT NULL, data TEXT NOT NULL);
      CREATE UNIQUE INDEX events_once ON events (run, time, rank, step, kind, message);
    )sql",
    // 2: spans; the start of a run's process, so that a reused pid does not keep a lost run running.
    R"sql(
      ALTER TABLE runs ADD COLUMN pid_started INTEGER NOT NULL DEFAULT 0;
      CREATE TABLE spans (
        run INTEGER NOT NULL, name INTEGER NOT NULL, rank INTEGER NOT NULL, start REAL NOT NULL, step INTEGER NOT NULL,
        seconds REAL NOT NULL, PRIMARY KEY (run, name, rank, start)) WITHOUT ROWID;
    )sql",
    // 3: studies of the tuner and their trials. `owner` is the token of the process that may write to the study.
    R"sql(
      CREATE TABLE studies (
        number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, name TEXT NOT NULL, created_at REAL NOT NULL,
        ended_at REAL NOT NULL DEFAULT 0, status TEXT NOT NULL DEFAULT 'running', host TEXT NOT NULL DEFAULT '',
        pid INTEGER NOT NULL DEFAULT 0, pid_started INTEGER NOT NULL DEFAULT 0, owner TEXT NOT NULL DEFAULT '',
        space_yaml TEXT NOT NULL, options TEXT NOT NULL DEFAULT '{}', versions TEXT NOT NULL DEFAULT '{}',
        conclusion TEXT NOT NULL DEFAULT 'null');
      CREATE INDEX studies_by_creation ON studies (created_at);
      CREATE TABLE trials (
        study INTEGER NOT NULL, number INTEGER NOT NULL, attempt INTEGER NOT NULL, state TEXT NOT NULL,
        started_at REAL NOT NULL, seconds REAL NOT NULL DEFAULT 0, gpu_seconds REAL NOT NULL DEFAULT 0,
        purpose TEXT NOT NULL, outcome TEXT NOT NULL DEFAULT '', throughput REAL NOT NULL DEFAULT 0,
        document TEXT NOT NULL, PRIMARY KEY (study, number, attempt));
    )sql",
    // 4: spans go, which nothing has ever written.
    "DROP TABLE spans",
    // 5: spans, as one value per rank and step; tags; curves as rows of whole steps that are packed into chunks (the
    // points of the table `metrics` are brought there by pack_metrics()).
    R"sql(
      CREATE TABLE spans (
        number INTEGER PRIMARY KEY, run INTEGER NOT NULL, step INTEGER NOT NULL, rank INTEGER NOT NULL,
        time REAL NOT NULL, data BLOB NOT NULL);
      CREATE UNIQUE INDEX spans_by_step ON spans (run, step, rank);
      CREATE TABLE tags (run INTEGER NOT NULL, tag TEXT NOT NULL, PRIMARY KEY (run, tag)) WITHOUT ROWID;
      CREATE TABLE series (
        number INTEGER PRIMARY KEY, run INTEGER NOT NULL, name INTEGER NOT NULL, rank INTEGER NOT NULL,
        UNIQUE (run, name, rank));
      CREATE TABLE steps (
        number INTEGER PRIMARY KEY, run INTEGER NOT NULL, rank INTEGER NOT NULL, step INTEGER NOT NULL,
        time_ms INTEGER NOT NULL, data BLOB NOT NULL);
      CREATE INDEX steps_by_rank ON steps (run, rank, step);
      -- Clustered by series, without the points: a chart reads neighbouring pages, and only summaries.
      CREATE TABLE chunks (
        series INTEGER NOT NULL, first_step INTEGER NOT NULL, last_step INTEGER NOT NULL, level INTEGER NOT NULL,
        points_number INTEGER NOT NULL, time_ms INTEGER NOT NULL, points INTEGER NOT NULL, finite INTEGER NOT NULL,
        minimum REAL, maximum REAL, mean REAL, summaries BLOB NOT NULL,
        PRIMARY KEY (series, first_step)) WITHOUT ROWID;
      CREATE TABLE chunk_points (number INTEGER PRIMARY KEY, data BLOB NOT NULL);
      CREATE VIEW run_steps (run, steps) AS SELECT number,
        (SELECT count(DISTINCT step) FROM steps WHERE run = runs.number) + coalesce((SELECT max(points) FROM
          (SELECT sum(points) AS points FROM chunks JOIN series ON series.number = chunks.series
            WHERE series.run = runs.number GROUP BY series)), 0) FROM runs;
    )sql",
};

// The version of the file, unless it is not ours to touch.
std::int64_t checked_version(Database& database) {
  const SourcePlace place{database.path().string()};
  Transaction snapshot(database, Transaction::Kind::kRead);  // another process may be migrating it at this moment
  const std::int64_t version = database.query_integer("PRAGMA user_version");
  if (version > kSchemaVersion) {
    throw bad_input("the run store was written by a newer lockstep (schema " + std::to_string(version) +
                        ", this one knows up to " + std::to_string(kSchemaVersion) + ")",
                    "update lockstep or set LOCKSTEP_HOME to another folder", place);
  }
  const bool ours = database.query_integer("PRAGMA application_id") == kApplicationId;
  if (!ours && (version != 0 || database.query_integer("SELECT count(*) FROM sqlite_master") != 0)) {
    throw bad_input("this SQLite file belongs to another program", "set LOCKSTEP_HOME to another folder", place);
  }
  return version;
}

// Points of versions 1 to 4, one row each, as chunks.
void pack_metrics(Database& database) {
  SeriesTables series(database);
  Statement rows(database, "SELECT run, name, rank, step, time_ms, value FROM metrics ORDER BY run, name, rank, step");
  SeriesTables::Key key;
  std::vector<Point> points;
  while (rows.step()) {
    const SeriesTables::Key next{rows.integer(0), rows.integer(1), static_cast<int>(rows.integer(2))};
    if (next != key) series.append(std::exchange(key, next), std::exchange(points, {}));
    points.push_back({rows.integer(3), static_cast<double>(rows.integer(4)) / 1000.0, rows.real(5)});
  }
  rows.reset();
  series.append(key, std::move(points));
  database.execute("DROP TABLE metrics");
}
constexpr std::int64_t kPacksMetrics = 4;  // the version before

}  // namespace

void migrate(Database& database) {
  while (true) {
    const std::int64_t seen = checked_version(database);
    if (seen == kSchemaVersion) return;
    Transaction transaction(database);
    // Another process may have been first.
    const std::int64_t version = database.query_integer("PRAGMA user_version");
    if (version == seen) {
      database.execute(kMigrations[static_cast<std::size_t>(version)]);
      if (version == kPacksMetrics) pack_metrics(database);
      database.execute(("PRAGMA user_version = " + std::to_string(version + 1)).c_str());
      database.execute(("PRAGMA application_id = " + std::to_string(kApplicationId)).c_str());
    }
    transaction.commit();
  }
}

}  // namespace lockstep::telemetry
