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
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

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
    return joined(tables_->ranks(run, metric), lines_->ranks(run, metric));
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
    return merged(tables_->events(run, at_least), lines_->events(run, at_least));
  }

  std::vector<Event> events_after(const std::string& run, double after, std::string_view kind) const override {
    return merged(tables_->events_after(run, after, kind), lines_->events_after(run, after, kind));
  }

  std::vector<std::string> metric_names(const std::string& run) const override {
    return joined(tables_->metric_names(run), lines_->metric_names(run));
  }

  std::vector<Point> points_after(const std::string& run, const std::string& metric, int rank, std::int64_t after_step,
                                  std::size_t limit) const override {
    if (lines_->ranks(run, metric).empty()) return tables_->points_after(run, metric, rank, after_step, limit);
    return RunStore::points_after(run, metric, rank, after_step, limit);
  }

  std::vector<Bucket> buckets(const std::string& run, const std::string& metric, int rank, std::int64_t first,
                              std::int64_t last, std::size_t count) const override {
    if (lines_->ranks(run, metric).empty()) return tables_->buckets(run, metric, rank, first, last, count);
    return RunStore::buckets(run, metric, rank, first, last, count);
  }

  std::vector<std::int64_t> span_steps(const std::string& run, int rank) const override {
    return joined(tables_->span_steps(run, rank), lines_->span_steps(run, rank));
  }

  std::vector<SpanBatch> spans(const std::string& run, std::int64_t first, std::int64_t last, int rank) const override {
    std::map<std::pair<std::int64_t, int>, SpanBatch> by_step;
    for (const RunStore* store : {tables_.get(), lines_.get()}) {
      for (SpanBatch& batch : store->spans(run, first, last, rank)) {
        const std::pair key(batch.step, batch.rank);
        const auto known = by_step.find(key);
        if (known == by_step.end() || known->second.time <= batch.time) by_step[key] = std::move(batch);
      }
    }
    std::vector<SpanBatch> batches;
    for (auto& [key, batch] : by_step) batches.push_back(std::move(batch));
    return batches;
  }

 private:
  // Two sorted lists as one.
  template <class Value>
  static std::vector<Value> joined(const std::vector<Value>& a, const std::vector<Value>& b) {
    std::vector<Value> both;
    std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both));
    return both;
  }

  static std::vector<Event> merged(const std::vector<Event>& a, const std::vector<Event>& b) {
    std::vector<Event> events;
    std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(events),
               [](const Event& x, const Event& y) { return x.time < y.time; });
    return events;
  }

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
  std::vector<Bucket> buckets;
  if (last < first || count == 0) return buckets;
  const auto width = static_cast<std::int64_t>((static_cast<std::uint64_t>(last - first) + count) / count);
  std::vector<std::int64_t> finite;
  for (const Point& point : points_after(run, metric, rank, first - 1, std::numeric_limits<std::int64_t>::max())) {
    if (point.step > last) break;
    const std::int64_t begin = first + (point.step - first) / width * width;
    if (buckets.empty() || buckets.back().first_step < begin) {
      buckets.push_back({point.step, point.step, point.time, 0, kNan, kNan, kNan});
      finite.push_back(0);
    }
    Bucket& bucket = buckets.back();
    bucket.last_step = point.step;
    bucket.time = point.time;
    ++bucket.points;
    if (!std::isfinite(point.value)) continue;
    const auto n = static_cast<double>(++finite.back());
    bucket.minimum = n == 1 ? point.value : std::min(bucket.minimum, point.value);
    bucket.maximum = n == 1 ? point.value : std::max(bucket.maximum, point.value);
    bucket.mean = n == 1 ? point.value : bucket.mean + (point.value - bucket.mean) / n;
  }
  return buckets;
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
