#include "lockstep/telemetry/home_runs.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "lockstep/telemetry/buckets.h"
#include "lockstep/telemetry/find_row.h"

namespace lockstep::telemetry {
namespace {

constexpr std::size_t kAll = std::numeric_limits<std::size_t>::max();

// What the tables know, filled in from the lines: another process may have written the begin or the end there.
void fill_in(RunRow& row, const RunRow& lines) {
  if (row.info.pid == 0 && lines.info.pid != 0) {
    row.info = lines.info;
    if (row.ended_at == 0) row.status = lines.status;
  }
  if (row.tags.empty()) row.tags = lines.tags;
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
    return merged(tables_->points(run, metric, rank), lines_->points(run, metric, rank));
  }

  std::optional<std::int64_t> last_step(const std::string& run, const std::string& metric, int rank) const override {
    return std::max(tables_->last_step(run, metric, rank), lines_->last_step(run, metric, rank));
  }

  std::vector<Event> events(const std::string& run, Level at_least) const override {
    return merged_events(tables_->events(run, at_least), lines_->events(run, at_least));
  }

  std::vector<Event> events_after(const std::string& run, double after, std::string_view kind) const override {
    return merged_events(tables_->events_after(run, after, kind), lines_->events_after(run, after, kind));
  }

  std::vector<std::string> metric_names(const std::string& run) const override {
    return joined(tables_->metric_names(run), lines_->metric_names(run));
  }

  std::vector<Point> points_after(const std::string& run, const std::string& metric, int rank, std::int64_t after_step,
                                  std::size_t limit) const override {
    std::vector<Point> points = merged(tables_->points_after(run, metric, rank, after_step, limit),
                                       lines_->points_after(run, metric, rank, after_step, limit));
    if (points.size() > limit) points.resize(limit);
    return points;
  }

  std::vector<Bucket> buckets(const std::string& run, const std::string& metric, int rank, std::int64_t first,
                              std::int64_t last, std::size_t count) const override {
    const auto in_tables = tables_->last_step(run, metric, rank);
    if (!in_tables) return lines_->buckets(run, metric, rank, first, last, count);
    const auto in_lines = lines_->points_after(run, metric, rank, std::numeric_limits<std::int64_t>::min(), 1);
    if (in_lines.empty()) return tables_->buckets(run, metric, rank, first, last, count);
    // A run that went on in lines. Steps that both have are taken from points, which know the later one.
    if (in_lines[0].step <= *in_tables) return RunStore::buckets(run, metric, rank, first, last, count);
    BucketGrid grid(first, last, count);
    for (const RunStore* store : {tables_.get(), lines_.get()}) {
      for (const Bucket& bucket : store->buckets(run, metric, rank, first, last, count)) grid.add(bucket);
    }
    return grid.take();
  }

  void set_tags(const std::string& run, const std::vector<std::string>& tags) override {
    (in_tables(run) ? tables_ : lines_)->set_tags(run, tags);
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
    batches.reserve(by_step.size());
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

  // By step; of a step that both have the later one counts.
  static std::vector<Point> merged(std::vector<Point> a, std::vector<Point> b) {
    if (a.empty()) return b;
    if (b.empty()) return a;
    std::vector<Point> both;
    both.reserve(a.size() + b.size());
    std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(both),
               [](const Point& x, const Point& y) { return std::tie(x.step, x.time) < std::tie(y.step, y.time); });
    const auto same = [](const Point& x, const Point& y) { return x.step == y.step; };
    both.erase(both.begin(), std::unique(both.rbegin(), both.rend(), same).base());
    return both;
  }

  static std::vector<Event> merged_events(const std::vector<Event>& a, const std::vector<Event>& b) {
    std::vector<Event> events;
    std::merge(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(events),
               [](const Event& x, const Event& y) { return x.time < y.time; });
    // A run whose lines were imported has them in both.
    std::set<std::tuple<double, int, std::int64_t, std::string, std::string>> seen;
    std::erase_if(events, [&](const Event& event) {
      return !a.empty() && !b.empty() &&
             !seen.emplace(event.time, event.rank, event.step, event.kind, event.message).second;
    });
    return events;
  }

  bool in_tables(const std::string& id) const {
    const auto rows = tables_->runs(kAll, id);
    return std::any_of(rows.begin(), rows.end(), [&](const RunRow& row) { return row.info.id == id; });
  }

  std::unique_ptr<RunStore> tables_, lines_;
};

}  // namespace

std::unique_ptr<RunStore> join_stores(std::unique_ptr<RunStore> tables, std::unique_ptr<RunStore> lines) {
  return std::make_unique<HomeRuns>(std::move(tables), std::move(lines));
}

}  // namespace lockstep::telemetry
