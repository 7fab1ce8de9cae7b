#include "lockstep/report/run_facts.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/error.h"
#include "lockstep/base/text.h"
#include "lockstep/base/units.h"
#include "lockstep/cost/flops.h"
#include "lockstep/report/json_numbers.h"
#include "lockstep/report/median.h"

namespace lockstep::report {
namespace {

using nlohmann::json;
using telemetry::Bucket;
using telemetry::Point;
using telemetry::RunStore;

// The first steps warm caches, allocators and clocks up; up to a tenth of the run, at most this many.
constexpr std::int64_t kMostWarmupSteps = 10;

std::string text_of(std::string_view name) { return std::string(name); }

plan::Interval interval_at(const json& prediction, const std::string& key, double scale) {
  const double expected = number_at(prediction, {key});
  if (expected <= 0.0) return {};
  plan::Interval interval{number_at(prediction, {"intervals", key, "low"}), expected,
                          number_at(prediction, {"intervals", key, "high"})};
  if (interval.low <= 0.0) interval.low = expected;
  if (interval.high <= 0.0) interval.high = expected;
  return {interval.low * scale, interval.expected * scale, interval.high * scale};
}

const json& best_of(const json& plan) {
  static const json kNothing = json::object();
  if (!plan.is_object()) return kNothing;
  const auto best = plan.find("best");
  return best != plan.end() && best->is_object() ? *best : plan;
}

// A batch that does not divide evenly was priced as whole micro-batches: the run's own summary has the right figure.
PredictedBand predicted_by(const RunFacts& facts) {
  const json& best = best_of(facts.plan);
  const auto found = best.find("prediction");
  PredictedBand band;
  band.memory_bytes = number_at(best, {"memory_gib", "total"}) * kGiB;
  if (found == best.end()) return band;
  const std::string rate = facts.unit + "_per_second";
  const double own = number_at(facts.run.summary, {"predicted_" + rate}), priced = number_at(*found, {rate});
  const double share = own > 0.0 && priced > 0.0 ? own / priced : 1.0;
  band.step_seconds = interval_at(*found, "step_seconds", 1.0);
  band.per_second = interval_at(*found, rate, share);
  band.mfu = interval_at(*found, "mfu", share);
  return band;
}

void read_plan_of(RunFacts& facts, const RunStore& store) {
  facts.plan = store.plan(facts.run.info.id);
  if (!facts.plan.is_object() || !facts.plan.contains("schema")) return;
  try {
    facts.typed = plan::read_plan(facts.plan, "plan of run " + facts.run.info.id);
  } catch (const UserError&) {  // of an older version: the figures that are there are still shown
    facts.typed.reset();
  }
}

// The median of its steps stands for a run that did not say itself.
double measured_rate(const RunFacts& facts, const RunStore& store) {
  const std::string name = facts.unit + "_per_second";
  const double own = number_at(facts.run.summary, {name});
  if (own > 0.0) return own;
  const std::vector<int> ranks = store.ranks(facts.run.info.id, name);
  if (ranks.empty()) return 0.0;
  std::vector<double> counted;
  for (const Point& point : store.points_after(facts.run.info.id, name, ranks.front(), facts.counted_from - 1)) {
    if (std::isfinite(point.value)) counted.push_back(point.value);
  }
  return median(std::move(counted));
}

RankFacts& rank_in(std::vector<RankFacts>& ranks, int rank) {
  for (RankFacts& known : ranks) {
    if (known.rank == rank) return known;
  }
  ranks.push_back({rank});
  return ranks.back();
}

struct PhaseMetric {
  std::string_view name;
  double PhaseSeconds::*field;
};
constexpr PhaseMetric kPhases[] = {{telemetry::metric::kStepSeconds, &PhaseSeconds::step},
                                   {telemetry::metric::kDataSeconds, &PhaseSeconds::data},
                                   {telemetry::metric::kComputeSeconds, &PhaseSeconds::compute},
                                   {telemetry::metric::kExposedCommSeconds, &PhaseSeconds::comm},
                                   {telemetry::metric::kOptimizerSeconds, &PhaseSeconds::optimizer},
                                   {telemetry::metric::kCheckpointSeconds, &PhaseSeconds::checkpoint},
                                   {telemetry::metric::kHostSeconds, &PhaseSeconds::host},
                                   {telemetry::metric::kWaitSeconds, &PhaseSeconds::wait},
                                   {telemetry::metric::kForwardSeconds, &PhaseSeconds::forward},
                                   {telemetry::metric::kBackwardSeconds, &PhaseSeconds::backward}};

// Steps are recorded when they are done: the first after a resume ends the recovery.
void read_resumptions(RunFacts& facts, const RunStore& store, const std::string& metric, int rank) {
  for (std::size_t i = 0; i < facts.events.size(); ++i) {
    const telemetry::Event& event = facts.events[i];
    if (event.kind != telemetry::event_kind::kResume) continue;
    const std::vector<Point> next = store.points_after(facts.run.info.id, metric, rank, event.step, 1);
    if (!next.empty() && next.front().time >= event.time) facts.first_step_at[i] = next.front().time;
  }
}

// Each step counts once, also where only some of its records are left.
double total_of(const RunFacts& facts, const RunStore& store, std::string_view metric) {
  const std::vector<int> ranks = store.ranks(facts.run.info.id, text_of(metric));
  if (ranks.empty() || facts.last_step <= 0) return 0.0;
  for (const Bucket& bucket :
       store.buckets(facts.run.info.id, text_of(metric), ranks.front(), facts.first_step, facts.last_step, 1)) {
    if (std::isfinite(bucket.mean)) return bucket.mean * static_cast<double>(facts.steps());
  }
  return 0.0;
}

void read_totals(RunFacts& facts, const RunStore& store) {
  facts.total_step_seconds = total_of(facts, store, telemetry::metric::kStepSeconds);
  facts.total_checkpoint_seconds = total_of(facts, store, telemetry::metric::kCheckpointSeconds);
  const std::string step = text_of(telemetry::metric::kStepSeconds);
  const std::vector<int> ranks = store.ranks(facts.run.info.id, step);
  if (ranks.empty()) return;
  const std::vector<Point> first = store.points_after(facts.run.info.id, step, ranks.front(), facts.first_step - 1, 1);
  if (!first.empty() && std::isfinite(first.front().value)) facts.began_at = first.front().time - first.front().value;
}

// The steps of the run, from what every program of ours records.
void find_steps(RunFacts& facts, const RunStore& store, std::int64_t window_steps) {
  const std::string& run = facts.run.info.id;
  for (const auto metric : {telemetry::metric::kStepSeconds, telemetry::metric::kLoss,
                            telemetry::metric::kTokensPerSecond, telemetry::metric::kSamplesPerSecond}) {
    const std::vector<int> ranks = store.ranks(run, text_of(metric));
    if (ranks.empty()) continue;
    const auto last = store.last_step(run, text_of(metric), ranks.front());
    const std::vector<Point> first = store.points_after(run, text_of(metric), ranks.front(), -1, 1);
    if (!last || first.empty()) continue;
    facts.first_step = std::max<std::int64_t>(1, first.front().step);
    facts.last_step = std::max(facts.first_step, *last);
    const std::vector<Point> newest = store.points_after(run, text_of(metric), ranks.front(), *last - 1, 1);
    if (!newest.empty()) facts.last_step_at = newest.front().time;
    facts.until = std::max(facts.until, facts.last_step_at);
    facts.began_at = first.front().time;
    read_resumptions(facts, store, text_of(metric), ranks.front());
    break;
  }
  const std::int64_t steps = facts.steps();
  facts.counted_from = facts.first_step + (steps > 2 ? std::min(kMostWarmupSteps, steps / 10 + 1) : 0);
  if (window_steps > 0) facts.counted_from = std::max(facts.counted_from, facts.last_step - window_steps + 1);
}

std::vector<Bucket> counted(const RunFacts& facts, const RunStore& store, const std::string& metric, int rank) {
  return store.buckets(facts.run.info.id, metric, rank, facts.counted_from, facts.last_step, 1);
}

void read_memory(RunFacts& facts, const RunStore& store) {
  const std::string& run = facts.run.info.id;
  for (const int rank : store.ranks(run, text_of(telemetry::metric::kMemoryBytes))) {
    const std::string name = text_of(telemetry::metric::kMemoryBytes);
    const auto last = store.last_step(run, name, rank);
    // The metric is the peak so far, so that its last value is the largest; but a rank that was replaced starts anew.
    for (const Bucket& bucket : store.buckets(run, name, rank, 0, last.value_or(0), 1)) {
      if (std::isfinite(bucket.maximum)) rank_in(facts.ranks, rank).peak_bytes = bucket.maximum;
    }
  }
  const std::string allocated = text_of(telemetry::metric::kAllocatedBytes);
  for (const int rank : store.ranks(run, allocated)) {
    const auto last = store.last_step(run, allocated, rank);
    const std::vector<Point> first = store.points_after(run, allocated, rank, facts.counted_from - 1, 1);
    const std::vector<Point> newest = store.points_after(run, allocated, rank, last.value_or(0) - 1, 1);
    if (!first.empty()) rank_in(facts.ranks, rank).first_allocated_bytes = first.front().value;
    if (!newest.empty()) rank_in(facts.ranks, rank).allocated_bytes = newest.front().value;
  }
}

void read_ranks(RunFacts& facts, const RunStore& store) {
  const std::string& run = facts.run.info.id;
  if (facts.last_step > 0) {
    for (const PhaseMetric& phase : kPhases) {
      const std::string name = text_of(phase.name);
      for (const int rank : store.ranks(run, name)) {
        for (const Bucket& bucket : counted(facts, store, name, rank)) {
          if (!std::isfinite(bucket.mean)) continue;
          RankFacts& known = rank_in(facts.ranks, rank);
          known.mean.*phase.field = bucket.mean;
          known.steps = std::max(known.steps, bucket.points);
        }
      }
    }
  }
  read_memory(facts, store);
  std::sort(facts.ranks.begin(), facts.ranks.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
  for (int rank = 0; rank < facts.run.info.world && !facts.ranks.empty(); ++rank) {
    const auto is_it = [rank](const RankFacts& known) { return known.rank == rank; };
    if (std::none_of(facts.ranks.begin(), facts.ranks.end(), is_it)) facts.missing_ranks.push_back(rank);
  }
}

json interval_json(const plan::Interval& interval) {
  if (interval.expected <= 0.0) return nullptr;
  return {{"low", interval.low}, {"expected", interval.expected}, {"high", interval.high}};
}

}  // namespace

PhaseSeconds RunFacts::mean_phases() const {
  PhaseSeconds mean;
  double count = 0.0;
  for (const RankFacts& rank : ranks) {
    if (rank.mean.step <= 0.0) continue;
    count += 1.0;
    for (const PhaseMetric& phase : kPhases) mean.*phase.field += rank.mean.*phase.field;
  }
  if (count > 0.0) {
    for (const PhaseMetric& phase : kPhases) mean.*phase.field /= count;
  }
  return mean;
}

bool RunFacts::has_phases() const {
  return std::any_of(ranks.begin(), ranks.end(), [](const RankFacts& rank) { return rank.mean.compute > 0.0; });
}

telemetry::RunRow find_run(const RunStore& store, const std::string& id) {
  const auto run = store.find(id);
  if (!run) {
    if (id == "last") throw environment_error("no run was recorded yet", "run `lockstep demo` first");
    throw bad_input("there is no run '" + printable(id) + "'", "`lockstep report last` shows the newest one");
  }
  return *run;
}

RunFacts read_run_facts(const RunStore& store, const std::string& id, std::int64_t window_steps) {
  RunFacts facts;
  facts.run = find_run(store, id);
  const std::string& run = facts.run.info.id;
  read_plan_of(facts, store);
  const auto recorded = [&](std::string_view metric) { return !store.ranks(run, text_of(metric)).empty(); };
  if (!recorded(telemetry::metric::kTokensPerSecond) && recorded(telemetry::metric::kSamplesPerSecond)) {
    facts.unit = "samples";
  }
  facts.events = store.events(run);
  facts.first_step_at.resize(facts.events.size(), 0.0);
  if (!facts.events.empty()) facts.until = facts.events.back().time;
  find_steps(facts, store, window_steps);
  if (facts.run.ended_at > 0.0) facts.until = facts.run.ended_at;
  facts.until = std::max(facts.until, facts.run.info.started_at);
  facts.measured_per_second = measured_rate(facts, store);
  facts.predicted = predicted_by(facts);
  read_totals(facts, store);
  read_ranks(facts, store);
  return facts;
}

std::vector<std::string> missing_hosts(const RunFacts& facts) {
  std::vector<std::string> missing;
  for (auto event = facts.events.rbegin(); event != facts.events.rend(); ++event) {
    if (event->kind != telemetry::event_kind::kPlacement) continue;  // the newest counts
    try {
      const auto nodes = event->data.at("nodes").get<std::vector<std::size_t>>();
      const auto hosts = event->data.at("hosts").get<std::vector<std::string>>();
      for (const int rank : facts.missing_ranks) {
        const std::string& host = hosts.at(nodes.at(static_cast<std::size_t>(rank)));
        if (std::find(missing.begin(), missing.end(), host) == missing.end()) missing.push_back(host);
      }
    } catch (const std::exception&) {  // of another program, or of a smaller world: what was found is all there is
    }
    break;
  }
  return missing;
}

std::string missing_text(const RunFacts& facts) {
  constexpr std::size_t kMostHosts = 8;
  const std::vector<std::string> known = missing_hosts(facts);
  const std::size_t missing = facts.missing_ranks.size(), hosts = known.size();
  if (missing == 0) return "";
  std::string text = fmt::format("no records of {} rank{} here, rank {} first", missing, missing == 1 ? "" : "s",
                                 facts.missing_ranks.front());
  if (hosts == 0) return text;
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::min(hosts, kMostHosts); ++i) names.push_back(printable(known[i], 100));
  if (hosts > kMostHosts) names.push_back(fmt::format("{} more", hosts - kMostHosts));
  return text + (missing == 1 ? "; it ran on " : "; they ran on ") + join(names, ", ");
}

double mfu_at(const RunFacts& facts, double per_second) {
  const PredictedBand& band = facts.predicted;
  if (band.mfu.expected > 0.0 && band.per_second.expected > 0.0) {
    return band.mfu.expected * per_second / band.per_second.expected;
  }
  if (!facts.typed || facts.unit != "tokens" || !facts.typed->model.is_language_model()) return 0.0;
  double peak = 0.0;  // of the ranks in use, in the order of the groups
  std::int64_t left = facts.typed->best.layout.world();
  for (const spec::NodeGroup& group : facts.typed->cluster.groups) {
    const std::int64_t used = std::min(left, group.nodes * group.devices_per_node);
    if (used > 0 && group.device.peak_bf16_flops <= 0.0) return 0.0;
    peak += static_cast<double>(used) * group.device.peak_bf16_flops;
    left -= used;
  }
  return cost::mfu(facts.typed->model, facts.typed->best.batch.sequence_length, per_second, 1, peak);
}

const char* measure_name(const RunFacts& facts) {
  return facts.typed && facts.typed->cluster.is_cpu() ? "efficiency" : "mfu";
}

std::int64_t stage_of(const RunFacts& facts, int rank) {
  if (!facts.typed) return 0;
  const plan::Layout& layout = facts.typed->best.layout;
  const std::int64_t ranks_of_a_stage = layout.world() / layout.pp;
  return ranks_of_a_stage > 0 ? std::min<std::int64_t>(rank / ranks_of_a_stage, layout.pp - 1) : 0;
}

json to_json(const PredictedBand& band, const std::string& unit) {
  json memory;
  if (band.memory_bytes > 0.0) memory = {{"low", nullptr}, {"expected", band.memory_bytes}, {"high", nullptr}};
  return {{"step_seconds", interval_json(band.step_seconds)},
          {unit + "_per_second", interval_json(band.per_second)},
          {"mfu", interval_json(band.mfu)},
          {"memory_bytes", memory}};
}

json to_json(const RankFacts& rank, const RunFacts& facts) {
  json row = {{"rank", rank.rank}, {"stage", stage_of(facts, rank.rank)}, {"steps", rank.steps}};
  for (const PhaseMetric& phase : kPhases) {
    const auto recorded = [&](const RankFacts& any) { return any.mean.*phase.field != 0.0; };
    const bool any = std::any_of(facts.ranks.begin(), facts.ranks.end(), recorded);
    row[text_of(phase.name)] = any ? number_or_null(rank.mean.*phase.field) : json();
  }
  row["memory_bytes"] = positive_or_null(rank.peak_bytes);
  row["allocated_bytes"] = positive_or_null(rank.allocated_bytes);
  return row;
}

}  // namespace lockstep::report
