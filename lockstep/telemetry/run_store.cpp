#include "lockstep/telemetry/run_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <map>

#include "lockstep/base/file.h"
#include "lockstep/telemetry/find_row.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::telemetry {
namespace {

constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

// What the tables know, filled in from the lines: another process may have written the begin or the end there.
void fill_in(RunRow& row, const RunRow& lines) {
  if (row.info.pid == 0 && lines.info.pid != 0) {
    row.info = lines.info;
    if (row.ended_at == 0) row.status = lines.status;
  }
  if (lines.ended_at <= row.ended_at) return;
  row.status = lines.status;
  row.ended_at = lines.ended_at;
  row.exit_reason = lines.exit_reason;
  row.summary = lines.summary;
}

// Tables and lines of one home, to read.
class HomeRuns : public RunStore {
 public:
  HomeRuns(std::unique_ptr<RunStore> tables, std::unique_ptr<RunStore> lines)
      : tables_(std::move(tables)), lines_(std::move(lines)) {}

  void write(const std::string& run, std::span<const Record> batch) override { tables_->write(run, batch); }

  std::vector<RunRow> runs(std::size_t limit, const std::string& beginning) const override {
    std::vector<RunRow> rows = tables_->runs(limit, beginning);
    std::map<std::string, std::size_t> known;
    for (std::size_t i = 0; i < rows.size(); ++i) known[rows[i].info.id] = i;
    for (RunRow& row : lines_->runs(kAll, beginning)) {
      if (const auto same = known.find(row.info.id); same != known.end()) {
        fill_in(rows[same->second], row);
      } else if (!in_tables(row.info.id)) {  // or older than those listed
        rows.push_back(std::move(row));
      }
    }
    keep_newest(rows, &RunInfo::started_at, limit);
    return rows;
  }

  nlohmann::json plan(const std::string& run) const override {
    nlohmann::json plan = tables_->plan(run);
    return plan.is_null() ? lines_->plan(run) : plan;
  }

  std::vector<int> ranks(const std::string& run, const std::string& metric) const override {
    const auto a = tables_->ranks(run, metric), b = lines_->ranks(run, metric);
    std::vector<int> both;
    std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
    return both;
  }

  std::vector<Point> points(const std::string& run, const std::string& metric, int rank) const override {
    std::map<std::int64_t, Point> by_step;
    for (const RunStore* store : {tables_.get(), lines_.get()}) {
      for (const Point& point : store->points(run, metric, rank)) {
        const auto [place, is_new] = by_step.try_emplace(point.step, point);
        if (!is_new && point.time >= place->second.time) place->second = point;
      }
    }
    std::vector<Point> points;
    points.reserve(by_step.size());
    for (const auto& [step, point] : by_step) points.push_back(point);
    return points;
  }

  std::optional<std::int64_t> last_step(const std::string& run, const std::string& metric, int rank) const override {
    return std::max(tables_->last_step(run, metric, rank), lines_->last_step(run, metric, rank));
  }

  std::vector<Event> events(const std::string& run, Level at_least) const override {
    const auto a = tables_->events(run, at_least), b = lines_->events(run, at_least);
    std::vector<Event> events;
    std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(events),
               [](const Event& x, const Event& y) { return x.time < y.time; });
    return events;
  }

 private:
  bool in_tables(const std::string& id) const {
    const auto rows = tables_->runs(kAll, id);
    return std::any_of(rows.begin(), rows.end(), [&](const RunRow& row) { return row.info.id == id; });
  }

  std::unique_ptr<RunStore> tables_, lines_;
};

}  // namespace

std::optional<RunRow> RunStore::find(const std::string& id) const {
  return find_row(id, "runs",
                  [this](std::size_t limit, const std::string& beginning) { return runs(limit, beginning); });
}

std::optional<std::int64_t> RunStore::last_step(const std::string& run, const std::string& metric, int rank) const {
  const std::vector<Point> all = points(run, metric, rank);
  return all.empty() ? std::nullopt : std::optional(all.back().step);
}

std::vector<Point> RunStore::series(const std::string& run, const std::string& metric, std::size_t max_points) const {
  const std::vector<int> recorded = ranks(run, metric);
  if (recorded.empty()) return {};
  std::vector<Point> all = points(run, metric, recorded.front());
  const std::size_t kept = std::max<std::size_t>(max_points, 2);
  if (max_points == 0 || all.size() <= kept) return all;
  std::vector<Point> thinned;
  for (std::size_t i = 0; i < kept; ++i) thinned.push_back(all[i * (all.size() - 1) / (kept - 1)]);
  return thinned;
}

std::vector<RankSummary> RunStore::per_rank(const std::string& run, const std::string& metric,
                                            std::int64_t from_step) const {
  std::vector<RankSummary> summaries;
  for (const int rank : ranks(run, metric)) {
    RankSummary summary{rank, 0, 0.0, std::numeric_limits<double>::quiet_NaN()};
    std::int64_t finite = 0;
    for (const Point& point : points(run, metric, rank)) {
      if (point.step < from_step) continue;
      ++summary.points;
      if (!std::isfinite(point.value)) continue;
      summary.mean += point.value;
      summary.maximum = finite++ == 0 ? point.value : std::max(summary.maximum, point.value);
    }
    summary.mean /= static_cast<double>(finite);  // NaN without any
    if (summary.points > 0) summaries.push_back(summary);
  }
  return summaries;
}

std::unique_ptr<RunStore> open_run_store(const std::filesystem::path& home) {
  const std::filesystem::path file = store_file(home);
  auto lines = make_json_lines_run_store(home);
  std::unique_ptr<RunStore> tables;
  std::error_code ignored;
  if (std::filesystem::exists(file, ignored)) {
    try {
      tables = make_sqlite_run_store(file, false);
      if (!tables) warn(file.string() + ": this build has no SQLite; only runs recorded as JSON lines are shown");
    } catch (const UserError& error) {
      if (lines->runs(1).empty()) throw;
      warn(fmt::format("{}; only runs recorded as JSON lines are shown", error.what()));
    }
  }
  if (!tables) return lines;
  return std::make_unique<HomeRuns>(std::move(tables), std::move(lines));
}

void check_home(const std::filesystem::path& home) {
  try {
    make_sqlite_run_store(store_file(home));
  } catch (const UserError& error) {
    if (error.code() == ExitCode::kUsage) throw;
  }
  make_folders(home / "runs");  // locked or full: the recorder goes on with JSON lines and says so
}

void warn(const std::string& text) { fmt::print(stderr, "lockstep: warning: {}\n", text); }

}  // namespace lockstep::telemetry
