// The run store: one SQLite file (WAL) with every run of this user, its plan, metrics, spans and events.
//
// A RunStore is one connection: use it from one thread at a time; open several for several threads or processes. Reads
// see a consistent state while runs are being recorded and never wait for them. In a build without SQLite open() throws
// UserError (environment); the JSON-lines files written there are imported with import_json_lines() elsewhere.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/telemetry/schema.h"

namespace lockstep::telemetry {

// A run as listed. `status` is kLost when it claims to run and its process is gone.
struct RunRow {
  RunInfo info;
  RunStatus status = RunStatus::kRunning;
  double ended_at = 0.0;  // 0: has not
  std::string exit_reason;
  nlohmann::json summary = nlohmann::json::object();
};

struct Point {
  std::int64_t step = 0;
  double time = 0.0;
  double value = 0.0;
};

// One metric of one rank.
struct RankSummary {
  int rank = 0;
  std::int64_t points = 0;
  double mean = 0.0;  // over the finite values, as are minimum and maximum; NaN when there are none
  double minimum = 0.0;
  double maximum = 0.0;
  std::int64_t last_step = 0;
  double last = 0.0;
};

struct SpanSummary {
  std::string name;
  int rank = 0;
  std::int64_t count = 0;
  double total_seconds = 0.0;
  double longest_seconds = 0.0;
};

class RunStore {
 public:
  // The version of the tables that this build writes (PRAGMA user_version).
  static constexpr int kSchemaVersion = 3;

  // Opens the store, making it (and its folder) when `create` is set, and brings older schemas forward, each step in a
  // transaction. Throws UserError: environment when it is missing and not created, unreadable, or locked for longer
  // than `busy_timeout_seconds`; bad input when the file is not SQLite or was written by a newer version (left
  // untouched).
  static RunStore open(const std::filesystem::path& path, bool create = true, double busy_timeout_seconds = 5.0);

  RunStore(RunStore&&) noexcept;
  RunStore& operator=(RunStore&&) noexcept;
  ~RunStore();

  // Writes a batch about run `run` in one transaction: all or nothing. The run is created by its RunInfo; records of a
  // run the store does not know yet make an empty one, which its RunInfo fills in later. A point recorded twice keeps
  // the last value. Throws UserError (environment) when the store stays locked.
  void write(const std::string& run, std::span<const Record> batch);

  std::vector<RunRow> runs(std::size_t limit = 100) const;  // newest first
  // `id` may be "last" or the beginning of an id when only one run matches; UserError (bad input) when several do.
  std::optional<RunRow> find(const std::string& id) const;
  std::optional<RunRow> last() const { return find("last"); }

  // All below take the full id of a run; an unknown one gives empty answers.
  nlohmann::json plan(const std::string& run) const;  // null when none was recorded
  std::vector<std::string> metric_names(const std::string& run) const;
  // Ordered by step. `rank` -1: the lowest rank that recorded it. `max_points` > 0: thinned evenly, ends kept.
  std::vector<Point> series(const std::string& run, const std::string& metric, int rank = -1,
                            std::size_t max_points = 0) const;
  // Ordered by rank. Steps below `from_step` are left out (warm-up).
  std::vector<RankSummary> per_rank(const std::string& run, const std::string& metric,
                                    std::int64_t from_step = 0) const;
  std::vector<Event> events(const std::string& run, Level at_least = Level::kDebug) const;  // in order of time
  std::vector<SpanSummary> spans(const std::string& run) const;

  struct Import {
    std::int64_t lines = 0;  // records taken
    bool torn_end = false;   // the last line was cut short (a killed process) and left out
    std::vector<std::string> runs;
  };
  // Takes a JSON-lines file, all or nothing. Importing it again, or a longer version of it, adds only what is new.
  // UserError (bad input, file:line) for a line that is no record.
  Import import_json_lines(const std::filesystem::path& file);

  // "ok", or what PRAGMA integrity_check says.
  std::string integrity() const;

 private:
  struct Impl;
  explicit RunStore(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::telemetry
