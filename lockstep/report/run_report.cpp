#include "lockstep/report/run_report.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/clock.h"
#include "lockstep/base/error.h"
#include "lockstep/base/text.h"

namespace lockstep::report {
namespace {

using nlohmann::json;
using telemetry::Point;
using telemetry::RankSummary;
using telemetry::RunStore;

constexpr std::size_t kCurvePoints = 400;
// The first steps warm caches, allocators and clocks up; up to a tenth of the run, at most this many.
constexpr std::int64_t kMostWarmupSteps = 10;

std::string name_of(std::string_view name) { return std::string(name); }

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2.0;
}

// The first step that counts for rates.
std::int64_t first_counted_step(const std::vector<Point>& points) {
  if (points.empty()) return 0;
  const auto skipped = std::min<std::int64_t>(kMostWarmupSteps, static_cast<std::int64_t>(points.size() / 10) + 1);
  return points.size() > 2 ? points[static_cast<std::size_t>(skipped)].step : points.front().step;
}

// Looks for a number along `keys`; 0 when it is not there. Plans come from files.
double number_at(const json& root, const std::vector<const char*>& keys) {
  const json* at = &root;
  for (const char* key : keys) {
    if (!at->is_object() || !at->contains(key)) return 0.0;
    at = &(*at)[key];
  }
  return at->is_number() ? at->get<double>() : 0.0;
}

void fill_prediction(RunReport& report, const json& plan) {
  const std::string rate = report.unit + "_per_second";
  for (const std::vector<const char*>& root : {std::vector<const char*>{"best", "prediction"}, {"prediction"}}) {
    const auto look = [&](std::vector<const char*> rest) {
      std::vector<const char*> keys = root;
      keys.insert(keys.end(), rest.begin(), rest.end());
      return number_at(plan, keys);
    };
    if (report.predicted_per_second > 0.0) return;
    report.predicted_per_second = look({rate.c_str()});
    report.predicted_low = look({"intervals", rate.c_str(), "low"});
    report.predicted_high = look({"intervals", rate.c_str(), "high"});
  }
}

// The run's own figure where it ended well; else the median of its steps stands for it.
void fill_rates(RunReport& report, const RunStore& store) {
  const std::string& run = report.run.info.id;
  std::vector<Point> rates = store.series(run, name_of(telemetry::metric::kTokensPerSecond));
  if (rates.empty()) {
    rates = store.series(run, name_of(telemetry::metric::kSamplesPerSecond));
    if (!rates.empty()) report.unit = "samples";
  }
  const std::int64_t from = first_counted_step(rates);
  std::vector<double> counted;
  for (const Point& point : rates) {
    if (point.step >= from && std::isfinite(point.value)) counted.push_back(point.value);
  }
  report.measured_per_second = median(std::move(counted));
  const auto own = report.run.summary.find(report.unit + "_per_second");
  if (own != report.run.summary.end() && own->is_number()) report.measured_per_second = own->get<double>();
}

RateOfRank& rank_in(std::vector<RateOfRank>& ranks, int rank) {
  for (RateOfRank& known : ranks) {
    if (known.rank == rank) return known;
  }
  ranks.push_back({rank});
  return ranks.back();
}

void fill_ranks(RunReport& report, const RunStore& store) {
  const std::string& run = report.run.info.id;
  const auto steps = store.series(run, name_of(telemetry::metric::kStepSeconds));
  const std::int64_t from = first_counted_step(steps);
  for (const RankSummary& row : store.per_rank(run, name_of(telemetry::metric::kStepSeconds), from)) {
    rank_in(report.ranks, row.rank).step_seconds = row.mean;
  }
  for (const RankSummary& row : store.per_rank(run, name_of(telemetry::metric::kComputeSeconds), from)) {
    rank_in(report.ranks, row.rank).compute_seconds = row.mean;
  }
  for (const RankSummary& row : store.per_rank(run, name_of(telemetry::metric::kMemoryBytes))) {
    rank_in(report.ranks, row.rank).memory_bytes = row.maximum;
    report.peak_memory_bytes = std::max(report.peak_memory_bytes, row.maximum);
  }
  std::sort(report.ranks.begin(), report.ranks.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });

  // Synchronous ranks all take the same time per step: who holds the others up shows in the time they compute.
  const bool by_compute =
      std::all_of(report.ranks.begin(), report.ranks.end(), [](const RateOfRank& r) { return r.compute_seconds > 0; });
  const auto busy = [&](const RateOfRank& r) { return by_compute ? r.compute_seconds : r.step_seconds; };
  std::vector<double> times;
  for (const RateOfRank& rank : report.ranks) times.push_back(busy(rank));
  const double typical = median(std::move(times));
  for (RateOfRank& rank : report.ranks) {
    if (typical > 0.0) rank.slowdown = busy(rank) / typical - 1.0;
    rank.straggler = report.ranks.size() > 1 && rank.slowdown > kStragglerSlowdown;
  }
  for (int rank = 0; rank < report.run.info.world && !report.ranks.empty(); ++rank) {
    const auto is_it = [rank](const RateOfRank& known) { return known.rank == rank; };
    if (std::none_of(report.ranks.begin(), report.ranks.end(), is_it)) report.missing_ranks.push_back(rank);
  }
}

json number_or_null(double value) { return std::isfinite(value) ? json(value) : json(); }
json positive_or_null(double value) { return value > 0.0 ? number_or_null(value) : json(); }

json curve_json(const std::vector<Point>& points) {
  json curve = json::array();
  for (const Point& point : points) curve.push_back({point.step, number_or_null(point.value)});
  return curve;
}

json events_json(const std::vector<telemetry::Event>& events) {
  json list = json::array();
  for (const telemetry::Event& event : events) {
    list.push_back({{"time", event.time},
                    {"level", telemetry::to_string(event.level)},
                    {"kind", event.kind},
                    {"rank", event.rank},
                    {"step", event.step},
                    {"message", event.message},
                    {"data", event.data}});
  }
  return list;
}

json ranks_json(const std::vector<RateOfRank>& ranks) {
  json list = json::array();
  for (const RateOfRank& rank : ranks) {
    list.push_back({{"rank", rank.rank},
                    {"step_seconds", positive_or_null(rank.step_seconds)},
                    {"compute_seconds", positive_or_null(rank.compute_seconds)},
                    {"memory_bytes", positive_or_null(rank.memory_bytes)},
                    {"slowdown", rank.slowdown},
                    {"straggler", rank.straggler}});
  }
  return list;
}

json run_json(const telemetry::RunRow& run) {
  return {{"id", run.info.id},
          {"name", run.info.name},
          {"status", telemetry::to_string(run.status)},
          {"started_at", run.info.started_at},
          {"ended_at", positive_or_null(run.ended_at)},
          {"world", run.info.world},
          {"backend", run.info.backend},
          {"host", run.info.host},
          {"versions", run.info.versions},
          {"exit_reason", run.exit_reason},
          {"summary", run.summary}};
}

}  // namespace

double RunReport::residual() const {
  if (predicted_per_second <= 0.0 || measured_per_second <= 0.0) return 0.0;
  return measured_per_second / predicted_per_second - 1.0;
}

telemetry::RunRow find_run(const RunStore& store, const std::string& id) {
  const auto run = store.find(id);
  if (!run) {
    if (id == "last") throw environment_error("no run was recorded yet", "run `lockstep demo` first");
    throw bad_input("there is no run '" + printable(id) + "'", "`lockstep report last` shows the newest one");
  }
  return *run;
}

RunReport make_run_report(const RunStore& store, const std::string& id) {
  RunReport report;
  report.run = find_run(store, id);
  const std::string& full = report.run.info.id;
  fill_rates(report, store);
  fill_prediction(report, store.plan(full));
  fill_ranks(report, store);
  report.loss = store.series(full, name_of(telemetry::metric::kLoss), kCurvePoints);
  report.evaluation_loss = store.series(full, name_of(telemetry::metric::kEvaluationLoss), kCurvePoints);
  if (!report.loss.empty()) report.steps = report.loss.back().step;
  report.events = store.events(full);
  return report;
}

json to_json(const RunReport& report) {
  const bool both = report.predicted_per_second > 0.0 && report.measured_per_second > 0.0;
  return {{"schema", "lockstep.report/1"},
          {"run", run_json(report.run)},
          {"steps", report.steps},
          {"unit", report.unit},
          {"predicted_per_second", positive_or_null(report.predicted_per_second)},
          {"predicted_low", positive_or_null(report.predicted_low)},
          {"predicted_high", positive_or_null(report.predicted_high)},
          {"measured_per_second", positive_or_null(report.measured_per_second)},
          {"residual", both ? json(report.residual()) : json()},
          {"peak_memory_bytes", positive_or_null(report.peak_memory_bytes)},
          {"loss", curve_json(report.loss)},
          {"evaluation_loss", curve_json(report.evaluation_loss)},
          {"ranks", ranks_json(report.ranks)},
          {"missing_ranks", report.missing_ranks},
          {"events", events_json(report.events)}};
}

}  // namespace lockstep::report
