#include "lockstep/report/watch/view.h"

#include <algorithm>
#include <cmath>

#include "lockstep/base/clock.h"
#include "lockstep/report/json_numbers.h"
#include "lockstep/report/run_page/run_page.h"

namespace lockstep::report {
namespace {

using nlohmann::json;
using telemetry::Point;
using telemetry::RunStore;

constexpr std::int64_t kWindowSteps = 200;

std::optional<double> newest(const WatchView& view, const RunStore& store, std::string_view metric) {
  const std::string& run = view.facts.run.info.id;
  const std::string name(metric);
  const std::vector<int> ranks = store.ranks(run, name);
  if (ranks.empty()) return std::nullopt;
  const auto last = store.last_step(run, name, ranks.front());
  const std::vector<Point> points = store.points_after(run, name, ranks.front(), last.value_or(0) - 1, 1);
  if (points.empty()) return std::nullopt;
  return points.back().value;
}

// The job says how many; what it says by tokens or epochs is in the summary only.
std::int64_t total_steps(const RunFacts& facts) {
  const double told = number_at(facts.run.summary, {"steps_total"});
  if (told > 0.0) return static_cast<std::int64_t>(told);
  const std::size_t at = ("\n" + facts.run.info.job_yaml).find("\nsteps: ");
  return at == std::string::npos ? 0 : std::max(0LL, std::atoll(facts.run.info.job_yaml.c_str() + at + 7));
}

void read_now(WatchView& view, const RunStore& store) {
  using namespace telemetry::metric;
  const RunFacts& facts = view.facts;
  view.now.step = facts.last_step;
  view.now.steps_total = total_steps(facts);
  view.now.unit = facts.unit;
  view.now.loss = newest(view, store, kLoss);
  view.now.gradient_norm = newest(view, store, kGradientNorm);
  view.now.learning_rate = newest(view, store, kLearningRate);
  if (facts.measured_per_second > 0.0) view.now.per_second = facts.measured_per_second;
  const double mfu = mfu_at(facts, facts.measured_per_second);
  if (mfu > 0.0) (view.waterfall.measure == Measure::kEfficiency ? view.now.efficiency : view.now.mfu) = mfu;
  if (view.memory.peak_bytes > 0.0) view.now.memory_bytes = view.memory.peak_bytes;
  const double step = facts.mean_phases().step;
  if (facts.runs() && view.now.steps_total > view.now.step && step > 0.0) {
    view.now.eta_seconds = static_cast<double>(view.now.steps_total - view.now.step) * step;
  }
}

void read_curves(WatchView& view, const RunStore& store, std::size_t columns) {
  const RunFacts& facts = view.facts;
  if (facts.steps() == 0) return;
  for (const std::string& metric : report_curves(facts.unit)) {
    const std::vector<int> ranks = store.ranks(facts.run.info.id, metric);
    if (ranks.empty()) continue;
    ReportCurve curve{metric, {}};
    for (const telemetry::Bucket& bucket :
         store.buckets(facts.run.info.id, metric, ranks.front(), facts.first_step, facts.last_step, columns)) {
      curve.points.push_back({bucket.last_step, bucket.time, bucket.mean});
    }
    if (!curve.points.empty()) view.curves.push_back(std::move(curve));
  }
}

void read_spans(WatchView& view, const RunStore& store) {
  const std::vector<std::int64_t> steps = store.span_steps(view.facts.run.info.id);
  // The newest may not be complete yet: ranks write on their own.
  const std::size_t world = static_cast<std::size_t>(std::max(1, view.facts.run.info.world));
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, steps.size()); ++back) {
    const std::int64_t step = steps[steps.size() - back];
    std::vector<telemetry::SpanBatch> batches = store.spans(view.facts.run.info.id, step, step);
    if (batches.size() > view.last_step.size()) view.last_step = std::move(batches);
    if (view.last_step.size() >= world) return;
  }
}

}  // namespace

const std::vector<Point>& WatchView::curve(std::string_view metric) const {
  static const std::vector<Point> kNone;
  const auto found =
      std::find_if(curves.begin(), curves.end(), [&](const auto& each) { return each.metric == metric; });
  return found == curves.end() ? kNone : found->points;
}

WatchView read_watch_view(const RunStore& store, const std::string& id, std::size_t columns) {
  WatchView view;
  view.facts = read_run_facts(store, id, kWindowSteps);
  view.read_at = unix_seconds();
  view.waterfall = make_waterfall(view.facts, store);
  view.memory = make_memory_terms(view.facts);
  view.incidents = make_incidents(view.facts);
  view.goodput = make_goodput(view.facts, view.incidents);
  view.standings = make_standings(view.facts);
  view.usage = read_usage(store, view.facts.run.info.id);
  RunFacts window = view.facts;
  window.first_step = std::max(window.first_step, window.last_step - kWindowSteps + 1);
  view.heat = make_heat_map(store, window, std::min<std::size_t>(columns, 60));
  read_curves(view, store, columns);
  read_spans(view, store);
  read_now(view, store);
  return view;
}

json to_json(const WatchView& view) {
  const RunFacts& facts = view.facts;
  const auto or_null = [](const std::optional<double>& value) { return value ? number_or_null(*value) : json(); };
  const auto straggler = std::find_if(view.standings.begin(), view.standings.end(),
                                      [](const Standing& standing) { return standing.straggler; });
  std::size_t alerts = 0;
  for (const Incident& incident : view.incidents.incidents) {
    alerts += incident.kind == IncidentKind::kAlert && incident.ended_at == 0.0 ? 1 : 0;
  }
  return {{"schema", "lockstep.watch/1"},
          {"run", facts.run.info.id},
          {"status", telemetry::to_string(facts.run.status)},
          {"time", view.read_at},
          {"step", facts.last_step},
          {"steps_total", view.now.steps_total > 0 ? json(view.now.steps_total) : json()},
          {"loss", or_null(view.now.loss)},
          {facts.unit + "_per_second", positive_or_null(facts.measured_per_second)},
          {"predicted", to_json(facts.predicted, facts.unit)},
          {"mfu", or_null(view.now.mfu ? view.now.mfu : view.now.efficiency)},
          {"memory_bytes", or_null(view.now.memory_bytes)},
          {"gradient_norm", or_null(view.now.gradient_norm)},
          {"goodput", view.goodput.useful_seconds > 0.0 ? json(view.goodput.share()) : json()},
          {"eta_seconds", or_null(view.now.eta_seconds)},
          {"straggler", straggler == view.standings.end() ? json() : json(straggler->rank)},
          {"incidents", view.incidents.incidents.size()},
          {"alerts", alerts}};
}

}  // namespace lockstep::report
