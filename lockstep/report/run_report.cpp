#include "lockstep/report/run_report.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "lockstep/report/json_numbers.h"

namespace lockstep::report {
namespace {

using nlohmann::json;
using telemetry::Point;
using telemetry::RunStore;

constexpr std::size_t kCurvePoints = 400;

UsageOfRank& usage_in(std::vector<UsageOfRank>& ranks, int rank) {
  for (UsageOfRank& known : ranks) {
    if (known.rank == rank) return known;
  }
  ranks.push_back({rank});
  return ranks.back();
}

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

json ranks_json(const RunReport& report) {
  json list = json::array();
  for (std::size_t i = 0; i < report.ranks.size(); ++i) {
    json row = to_json(report.ranks[i], report);
    row["busy_seconds"] = positive_or_null(report.standings[i].busy_seconds);
    row["slowdown"] = report.standings[i].slowdown;
    row["straggler"] = report.standings[i].straggler;
    list.push_back(std::move(row));
  }
  return list;
}

json usage_json(const std::vector<UsageOfRank>& usage) {
  json list = json::array();
  for (const UsageOfRank& rank : usage) {
    list.push_back({{"rank", rank.rank},
                    {"cpu_percent", positive_or_null(rank.cpu_percent)},
                    {"resident_bytes", positive_or_null(rank.resident_bytes)},
                    {"gpu_percent", positive_or_null(rank.gpu_percent)},
                    {"gpu_memory_bytes", positive_or_null(rank.gpu_memory_bytes)}});
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
          {"job_yaml", run.info.job_yaml},
          {"exit_reason", run.exit_reason},
          {"tags", run.tags},
          {"summary", run.summary}};
}

}  // namespace

double RunReport::residual() const {
  if (predicted.per_second.expected <= 0.0 || measured_per_second <= 0.0) return 0.0;
  return measured_per_second / predicted.per_second.expected - 1.0;
}

const std::vector<Point>& RunReport::curve(std::string_view metric) const {
  static const std::vector<Point> kNone;
  const auto found =
      std::find_if(curves.begin(), curves.end(), [&](const auto& each) { return each.metric == metric; });
  return found == curves.end() ? kNone : found->points;
}

std::vector<ReportCurve> RunReport::evaluation_metrics() const {
  std::vector<ReportCurve> found;
  std::copy_if(curves.begin(), curves.end(), std::back_inserter(found), [](const ReportCurve& curve) {
    return curve.metric.starts_with(telemetry::metric::kEvaluationPrefix) &&
           curve.metric != telemetry::metric::kEvaluationLoss;
  });
  return found;
}

std::vector<std::string> report_curves(const std::string& unit) {
  using namespace telemetry::metric;
  return {std::string(kLoss),       std::string(kEvaluationLoss), unit + "_per_second",      std::string(kMfu),
          std::string(kEfficiency), std::string(kGradientNorm),   std::string(kMemoryBytes), std::string(kStepSeconds)};
}

std::vector<UsageOfRank> read_usage(const RunStore& store, const std::string& run) {
  std::vector<UsageOfRank> usage;
  struct Used {
    const char* metric;
    double UsageOfRank::*field;
    double telemetry::RankSummary::*of;
  };
  constexpr Used kUsed[] = {{"cpu_percent", &UsageOfRank::cpu_percent, &telemetry::RankSummary::mean},
                            {"resident_bytes", &UsageOfRank::resident_bytes, &telemetry::RankSummary::maximum},
                            {"gpu_percent", &UsageOfRank::gpu_percent, &telemetry::RankSummary::mean},
                            {"gpu_memory_bytes", &UsageOfRank::gpu_memory_bytes, &telemetry::RankSummary::maximum}};
  for (const Used& used : kUsed) {
    for (const telemetry::RankSummary& row : store.per_rank(run, used.metric)) {
      if (std::isfinite(row.*used.of)) usage_in(usage, row.rank).*used.field = row.*used.of;
    }
  }
  std::sort(usage.begin(), usage.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  return usage;
}

RunReport make_run_report(const RunStore& store, const std::string& id) {
  RunReport report;
  static_cast<RunFacts&>(report) = read_run_facts(store, id);
  report.mfu = mfu_at(report, report.measured_per_second);
  report.waterfall = make_waterfall(report, store);
  report.memory = make_memory_terms(report);
  report.incidents = make_incidents(report);
  report.goodput = make_goodput(report, report.incidents);
  report.standings = make_standings(report);
  report.usage = read_usage(store, report.run.info.id);
  std::vector<std::string> metrics = report_curves(report.unit);
  for (const std::string& metric : store.metric_names(report.run.info.id)) {
    const bool known = std::find(metrics.begin(), metrics.end(), metric) != metrics.end();
    if (!known && metric.starts_with(telemetry::metric::kEvaluationPrefix)) metrics.push_back(metric);
  }
  for (const std::string& metric : metrics) {
    std::vector<Point> points = store.series(report.run.info.id, metric, kCurvePoints);
    if (!points.empty()) report.curves.push_back({metric, std::move(points)});
  }
  return report;
}

json to_json(const RunReport& report) {
  const plan::Interval& rate = report.predicted.per_second;
  const bool both = rate.expected > 0.0 && report.measured_per_second > 0.0;
  json curves = json::object();
  for (const ReportCurve& curve : report.curves) curves[curve.metric] = curve_json(curve.points);
  return {{"schema", "lockstep.report/1"},
          {"run", run_json(report.run)},
          {"steps", report.last_step},
          {"unit", report.unit},
          {"predicted", to_json(report.predicted, report.unit)},
          {"predicted_per_second", positive_or_null(rate.expected)},
          {"predicted_low", positive_or_null(rate.low)},
          {"predicted_high", positive_or_null(rate.high)},
          {"measured_per_second", positive_or_null(report.measured_per_second)},
          {"residual", both ? json(report.residual()) : json()},
          {"mfu", positive_or_null(report.mfu)},
          {"measure", measure_name(report)},
          {"goodput", to_json(report.goodput)},
          {"waterfall", to_json(report.waterfall)},
          {"memory", to_json(report.memory)},
          {"peak_memory_bytes", positive_or_null(report.memory.peak_bytes)},
          {"loss", curve_json(report.curve(telemetry::metric::kLoss))},
          {"evaluation_loss", curve_json(report.curve(telemetry::metric::kEvaluationLoss))},
          {"curves", curves},
          {"ranks", ranks_json(report)},
          {"usage", usage_json(report.usage)},
          {"missing_ranks", report.missing_ranks},
          {"missing_hosts", missing_hosts(report)},
          {"incidents", to_json(report.incidents)["incidents"]},
          {"checkpoints", to_json(report.incidents)["checkpoints"]},
          {"events", events_json(report.events)}};
}

}  // namespace lockstep::report
