#include "lockstep/serve/run_values.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"

namespace lockstep::serve {
namespace {

using nlohmann::json;
using telemetry::Point;
using telemetry::RunRow;
using telemetry::RunStore;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr std::int64_t kRecentSteps = 21;  // whose median is the rate of now
constexpr double kEndedFreshSeconds = 30;  // how long the figures of a run that ended are believed
constexpr double kRunningFreshSeconds = 0.5;
constexpr std::size_t kMostKept = 5000;
constexpr std::size_t kMostSpanSteps = 200;

std::string name_of(std::string_view name) { return std::string(name); }

// Plans and summaries come from files: nothing about their shape is taken for granted.
const json* at(const json& root, std::initializer_list<const char*> keys) {
  const json* here = &root;
  for (const char* key : keys) {
    if (!here->is_object()) return nullptr;
    const auto found = here->find(key);
    if (found == here->end()) return nullptr;
    here = &*found;
  }
  return here;
}

double number_at(const json& root, std::initializer_list<const char*> keys) {
  const json* found = at(root, keys);
  return found != nullptr && found->is_number() ? found->get<double>() : kNan;
}

std::string text_at(const json& root, std::initializer_list<const char*> keys) {
  const json* found = at(root, keys);
  return found != nullptr && found->is_string() ? found->get<std::string>() : std::string();
}

const json& best_of(const json& plan) {
  const json* best = at(plan, {"best"});
  return best != nullptr ? *best : plan;
}

double newest_value(const RunStore& store, const std::string& run, std::string_view metric) {
  const auto point = newest_point(store, run, name_of(metric));
  return point ? point->value : kNan;
}

// The median of the last steps: one slow step is not the rate of now.
double recent_rate(const RunStore& store, const std::string& run, const std::string& metric) {
  const auto newest = newest_point(store, run, metric);
  if (!newest) return kNan;
  const int rank = store.ranks(run, metric).front();
  std::vector<double> values;
  for (const Point& point : store.points_after(run, metric, rank, newest->step - kRecentSteps)) {
    if (std::isfinite(point.value)) values.push_back(point.value);
  }
  if (values.empty()) return kNan;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double first_known(std::initializer_list<double> values) {
  for (const double value : values) {
    if (std::isfinite(value)) return value;
  }
  return kNan;
}

json known(double value) { return std::isfinite(value) ? json(value) : json(); }
json text_or_null(const std::string& text) { return text.empty() ? json() : json(text); }

json ranks_of(const RunStore& store, const RunRow& row) {
  for (const std::string_view metric : {telemetry::metric::kStepSeconds, telemetry::metric::kLoss}) {
    const std::vector<int> ranks = store.ranks(row.info.id, name_of(metric));
    if (!ranks.empty()) return ranks;
  }
  return json::array();
}

}  // namespace

std::optional<Point> newest_point(const RunStore& store, const std::string& run, const std::string& metric) {
  const std::vector<int> ranks = store.ranks(run, metric);
  if (ranks.empty()) return std::nullopt;
  const auto step = store.last_step(run, metric, ranks.front());
  if (!step) return std::nullopt;
  const std::vector<Point> points = store.points_after(run, metric, ranks.front(), *step - 1, 1);
  return points.empty() ? std::nullopt : std::optional(points.front());
}

std::vector<RuleState> rule_states(const RunStore& store, const RunRow& row) {
  const bool running = row.status == telemetry::RunStatus::kRunning;
  std::map<std::pair<std::string, std::string>, bool> states;
  for (const telemetry::Event& event : store.events_after(row.info.id, 0.0, telemetry::event_kind::kAlert)) {
    states[{text_at(event.data, {"rule"}), text_at(event.data, {"subject"})}] =
        running && text_at(event.data, {"state"}) != "resolved";
  }
  std::vector<RuleState> rules;
  rules.reserve(states.size());
  for (const auto& [key, firing] : states) rules.push_back({key.first, key.second, firing});
  return rules;
}

std::string layout_text(const json& plan) {
  const json* layout = at(best_of(plan), {"layout"});
  if (layout == nullptr) return {};
  std::vector<std::string> parts;
  for (const char* axis : {"pp", "dp", "shard", "cp", "tp", "ep"}) {
    if (const double size = number_at(*layout, {axis}); size > 1.0)
      parts.push_back(fmt::format("{}={:.0f}", axis, size));
  }
  if (const double zero = number_at(*layout, {"zero"}); zero > 0.0) parts.push_back(fmt::format("zero={:.0f}", zero));
  return parts.empty() ? "dp=1" : join(parts, ",");
}

json predicted(const json& plan, const std::string& name) {
  const json& best = best_of(plan);
  if (name == "memory_bytes") {
    const double total = number_at(best, {"memory_gib", "total"}) * 1024.0 * 1024.0 * 1024.0;
    return std::isfinite(total) ? json{{"low", nullptr}, {"expected", total}, {"high", nullptr}} : json();
  }
  const double low = number_at(best, {"prediction", "intervals", name.c_str(), "low"});
  const double high = number_at(best, {"prediction", "intervals", name.c_str(), "high"});
  const double expected = first_known({number_at(best, {"prediction", "intervals", name.c_str(), "expected"}),
                                       number_at(best, {"prediction", name.c_str()})});
  if (!(expected > 0.0)) return nullptr;
  return {{"low", known(low)}, {"expected", known(expected)}, {"high", known(high)}};
}

RunFigures figures_of(const RunStore& store, const RunRow& row) {
  const std::string& run = row.info.id;
  const json plan = store.plan(run);
  RunFigures figures;
  figures.model = text_at(plan, {"model", "name"});
  figures.layout = plan.is_null() ? text_at(row.summary, {"layout"}) : layout_text(plan);
  const bool samples = store.ranks(run, name_of(telemetry::metric::kTokensPerSecond)).empty() &&
                       !store.ranks(run, name_of(telemetry::metric::kSamplesPerSecond)).empty();
  figures.unit = samples ? "samples" : "tokens";
  const std::string rate = figures.unit + "_per_second";
  const auto newest_loss = newest_point(store, run, name_of(telemetry::metric::kLoss));
  const auto newest_step =
      newest_loss ? newest_loss : newest_point(store, run, name_of(telemetry::metric::kStepSeconds));
  figures.steps = static_cast<std::int64_t>(
      first_known({number_at(row.summary, {"steps"}), newest_step ? static_cast<double>(newest_step->step) : 0.0}));
  figures.loss = newest_loss ? newest_loss->value : number_at(row.summary, {"final_loss"});
  figures.per_second = row.ended_at > 0 ? number_at(row.summary, {rate.c_str()}) : kNan;
  if (!std::isfinite(figures.per_second)) figures.per_second = recent_rate(store, run, rate);
  const double low_level = number_at(best_of(plan), {"prediction", rate.c_str()});
  figures.predicted_per_second = low_level > 0.0 ? low_level : kNan;
  figures.mfu = newest_value(store, run, telemetry::metric::kMfu);
  figures.goodput = newest_value(store, run, telemetry::metric::kGoodput);
  if (row.status == telemetry::RunStatus::kRunning) {
    const std::vector<RuleState> rules = rule_states(store, row);
    figures.alerts = std::count_if(rules.begin(), rules.end(), [](const RuleState& rule) { return rule.firing; });
  }
  return figures;
}

RunFigures FigureCache::get(const RunStore& store, const RunRow& row) {
  const double now = monotonic_seconds();
  {
    const std::lock_guard lock(mutex_);
    const auto found = kept_.find(row.info.id);
    const bool running = row.status == telemetry::RunStatus::kRunning;
    if (found != kept_.end() && found->second.ended_at == row.ended_at &&
        now - found->second.read_at < (running ? kRunningFreshSeconds : kEndedFreshSeconds)) {
      return found->second.figures;
    }
  }
  RunFigures figures = figures_of(store, row);
  const std::lock_guard lock(mutex_);
  if (kept_.size() >= kMostKept) kept_.clear();
  kept_[row.info.id] = {row.ended_at, now, figures};
  return figures;
}

json listed_run(const RunRow& row, const RunFigures& figures) {
  return {{"id", row.info.id},
          {"name", row.info.name},
          {"status", telemetry::to_string(row.status)},
          {"started_at", row.info.started_at},
          {"ended_at", row.ended_at > 0 ? json(row.ended_at) : json()},
          {"world", row.info.world},
          {"backend", row.info.backend},
          {"host", row.info.host},
          {"tags", row.tags},
          {"model", text_or_null(figures.model)},
          {"layout", text_or_null(figures.layout)},
          {"unit", figures.unit},
          {"steps", figures.steps},
          {"loss", known(figures.loss)},
          {"tokens_per_second", figures.unit == "tokens" ? known(figures.per_second) : json()},
          {"samples_per_second", figures.unit == "samples" ? known(figures.per_second) : json()},
          {"predicted_per_second", known(figures.predicted_per_second)},
          {"mfu", known(figures.mfu)},
          {"goodput", known(figures.goodput)},
          {"alerts", figures.alerts}};
}

json whole_run(const RunStore& store, const RunRow& row, const RunFigures& figures) {
  const std::string& id = row.info.id;
  json plan = store.plan(id);
  json run = listed_run(row, figures);
  run["job_yaml"] = row.info.job_yaml;
  run["versions"] = row.info.versions;
  run["exit_reason"] = row.exit_reason;
  run["summary"] = row.summary;
  json bands = json::object();
  for (const char* name : {"step_seconds", "tokens_per_second", "samples_per_second", "mfu", "memory_bytes"}) {
    bands[name] = predicted(plan, name);
  }
  if (plan.is_object()) {  // what was not chosen is most of it
    plan.erase("alternatives");
    plan.erase("pareto");
  }
  std::vector<std::int64_t> span_steps = store.span_steps(id);
  if (span_steps.size() > kMostSpanSteps) span_steps.erase(span_steps.begin(), span_steps.end() - kMostSpanSteps);
  return {{"schema", "lockstep.api.run/1"},
          {"run", std::move(run)},
          {"metrics", store.metric_names(id)},
          {"ranks", ranks_of(store, row)},
          {"unit", figures.unit},
          {"predicted", std::move(bands)},
          {"plan", std::move(plan)},
          {"span_steps", std::move(span_steps)}};
}

json event_json(const telemetry::Event& event) {
  return {{"time", event.time}, {"level", telemetry::to_string(event.level)},
          {"kind", event.kind}, {"rank", event.rank},
          {"step", event.step}, {"message", event.message},
          {"data", event.data}};
}

}  // namespace lockstep::serve
