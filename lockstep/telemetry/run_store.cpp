#include "lockstep/telemetry/run_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lockstep/base/file.h"
#include "lockstep/telemetry/buckets.h"
#include "lockstep/telemetry/find_row.h"
#include "lockstep/telemetry/home_runs.h"
#include "lockstep/telemetry/recorder.h"

namespace lockstep::telemetry {

std::optional<RunRow> RunStore::find(const std::string& id) const {
  return find_row(id, "runs",
                  [this](std::size_t limit, const std::string& beginning) { return runs(limit, beginning); });
}

std::optional<std::int64_t> RunStore::last_step(const std::string& run, const std::string& metric, int rank) const {
  const std::vector<Point> all = points(run, metric, rank);
  return all.empty() ? std::nullopt : std::optional(all.back().step);
}

std::vector<Point> RunStore::points_after(const std::string& run, const std::string& metric, int rank,
                                          std::int64_t after_step, std::size_t limit) const {
  std::vector<Point> all = points(run, metric, rank);
  const auto first = std::upper_bound(all.begin(), all.end(), after_step,
                                      [](std::int64_t step, const Point& point) { return step < point.step; });
  all.erase(all.begin(), first);
  if (all.size() > limit) all.resize(limit);
  return all;
}

std::vector<Event> RunStore::events_after(const std::string& run, double after, std::string_view kind) const {
  std::vector<Event> found = events(run);
  std::erase_if(found,
                [&](const Event& event) { return event.time <= after || (!kind.empty() && event.kind != kind); });
  return found;
}

std::vector<Bucket> RunStore::buckets(const std::string& run, const std::string& metric, int rank, std::int64_t first,
                                      std::int64_t last, std::size_t count) const {
  BucketGrid grid(first, last, count);
  if (grid.empty()) return {};
  const std::int64_t before = first == std::numeric_limits<std::int64_t>::min() ? first : first - 1;
  for (const Point& point : points_after(run, metric, rank, before, std::numeric_limits<std::size_t>::max())) {
    if (point.step > last) break;
    grid.add(point);
  }
  return grid.take();
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
    const auto all = buckets(run, metric, rank, from_step, std::numeric_limits<std::int64_t>::max(), 1);
    if (!all.empty()) summaries.push_back({rank, all[0].points, all[0].mean, all[0].maximum});
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
  return join_stores(std::move(tables), std::move(lines));
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
