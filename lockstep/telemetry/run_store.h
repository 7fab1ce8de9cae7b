// The run store: every run of this user with its plan, metrics and events.
//
// One interface, two stores: tables in one SQLite file (WAL), and JSON-lines files in the folder of each run, written
// where SQLite is not compiled in, by ranks on other nodes, and when the tables cannot be written. open_run_store()
// reads a home folder that holds either or both as one store.
//
// A RunStore is used from one thread at a time; open several for several threads or processes. Reads see a consistent
// state while runs are being recorded and never wait for them.
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
  std::vector<std::string> tags;  // sorted
};

struct Point {
  std::int64_t step = 0;
  double time = 0.0;
  double value = 0.0;
};

// Neighbouring points of a curve as one: what a chart of limited width needs.
struct Bucket {
  std::int64_t first_step = 0, last_step = 0;
  double time = 0.0;  // of the last point
  std::int64_t points = 0;
  double minimum = 0.0, maximum = 0.0, mean = 0.0;  // over the finite values; NaN when there are none
  std::int64_t finite = 0;                          // of the points
};

// One metric of one rank.
struct RankSummary {
  int rank = 0;
  std::int64_t points = 0;
  double mean = 0.0;  // over the finite values, as is the maximum; NaN when there are none
  double maximum = 0.0;
};

class RunStore {
 public:
  virtual ~RunStore() = default;

  // Writes a batch about run `run`: all or nothing. The run is created by its RunInfo; records of a run the store does
  // not know yet make an empty one, which its RunInfo fills in later. A point recorded twice keeps the last value.
  // Throws UserError (environment) when it cannot be written.
  virtual void write(const std::string& run, std::span<const Record> batch) = 0;

  // Newest first; only runs whose id begins with `beginning`.
  virtual std::vector<RunRow> runs(std::size_t limit = 100, const std::string& beginning = {}) const = 0;

  // All below take the full id of a run; an unknown one gives empty answers.
  virtual nlohmann::json plan(const std::string& run) const = 0;  // null when none was recorded
  // The ranks that recorded a metric, ascending.
  virtual std::vector<int> ranks(const std::string& run, const std::string& metric) const = 0;
  // Ordered by step. Of old steps that are kept as summaries only (run-store.md: Retention) a point is the mean of a
  // few steps, at the last of them; losses are always whole.
  virtual std::vector<Point> points(const std::string& run, const std::string& metric, int rank) const = 0;
  // The last step that points() has; nothing when it has none.
  virtual std::optional<std::int64_t> last_step(const std::string& run, const std::string& metric, int rank) const;
  virtual std::vector<Event> events(const std::string& run, Level at_least = Level::kDebug) const = 0;  // by time
  // By time, those later than `after`, of one kind only unless that is "". Does not read what is before.
  virtual std::vector<Event> events_after(const std::string& run, double after, std::string_view kind = {}) const;
  virtual std::vector<std::string> metric_names(const std::string& run) const = 0;  // sorted
  // The points after `after_step`, at most `limit`, by step: what a live chart asks for. Does not read what is before.
  virtual std::vector<Point> points_after(const std::string& run, const std::string& metric, int rank,
                                          std::int64_t after_step, std::size_t limit = 100000) const;
  // Steps first..last (inclusive) in at most `count` buckets of about equal numbers of steps: a bucket's ends may be
  // off by a quarter, because summaries are not taken apart; nothing outside first..last is counted. Reads a few
  // thousand values, however long the series is.
  virtual std::vector<Bucket> buckets(const std::string& run, const std::string& metric, int rank, std::int64_t first,
                                      std::int64_t last, std::size_t count) const;
  // Replaces the tags of a run that the store has. At most 32, each 1 to 64 bytes of UTF-8 without control characters,
  // double ones once; UserError (bad input) otherwise.
  virtual void set_tags(const std::string& run, const std::vector<std::string>& tags) = 0;
  // Steps whose spans of `rank` are kept, ascending; -1: of any rank.
  virtual std::vector<std::int64_t> span_steps(const std::string& run, int rank = -1) const = 0;
  // Spans of first..last, ordered by step and rank; `rank` -1: of all ranks.
  virtual std::vector<SpanBatch> spans(const std::string& run, std::int64_t first, std::int64_t last,
                                       int rank = -1) const = 0;

  // `id` may be "last" or the beginning of an id when only one run matches; UserError (bad input) when several do.
  std::optional<RunRow> find(const std::string& id) const;
  // points() of the lowest rank that recorded it. `max_points` > 0: thinned evenly, ends kept.
  std::vector<Point> series(const std::string& run, const std::string& metric, std::size_t max_points = 0) const;
  // Ordered by rank. Steps below `from_step` are left out (warm-up). Exact for thinned series too.
  std::vector<RankSummary> per_rank(const std::string& run, const std::string& metric,
                                    std::int64_t from_step = 0) const;
};

// The version of the tables that this build writes (PRAGMA user_version).
inline constexpr int kSchemaVersion = 5;

// Everything under `home`, to read: tables and JSON lines joined, so that a run whose ranks wrote here and there is one
// run; an empty one where nothing was recorded yet. Tables that cannot be read are an error only when there are no JSON
// lines either, else a warning on stderr.
std::unique_ptr<RunStore> open_run_store(const std::filesystem::path& home);

// Tables in `file`, made (with the folder) when `create` is set and brought forward from older schemas, each step in a
// transaction; nullptr in a build without SQLite. Throws UserError: environment when it is missing and not created,
// unreadable, or locked for longer than `busy_timeout_seconds`; bad input when the file is not SQLite or was written by
// a newer version (left untouched).
std::unique_ptr<RunStore> make_sqlite_run_store(const std::filesystem::path& file, bool create = true,
                                                double busy_timeout_seconds = 5.0);
bool has_sqlite();

// home/runs/<id>/*.jsonl. Reads the files of all writers; writes lines_file(home, run, rank), which no other process
// may write. UserError (bad input, file:line) for a line that is not a record, unless runs are only listed.
std::unique_ptr<RunStore> make_json_lines_run_store(const std::filesystem::path& home, int rank = -1);
// Spans lie in a file of their own, thinned like those of the tables: home/runs/<id>/rank-00003.spans.jsonl.
std::filesystem::path spans_file(const std::filesystem::path& home, const std::string& run, int rank);
// home/runs/<id>/rank-00003.jsonl; `rank` -1: run.jsonl, of the process that owns the run.
std::filesystem::path lines_file(const std::filesystem::path& home, const std::string& run, int rank);

// Before a run: UserError when it could not be recorded under `home` in any way, or runs.db is not a store of ours.
void check_home(const std::filesystem::path& home);

// One line on stderr.
void warn(const std::string& text);

}  // namespace lockstep::telemetry
