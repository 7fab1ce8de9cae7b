#include "lockstep/diagnose/evidence.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "lockstep/base/error.h"
#include "lockstep/diagnose/statistics.h"

namespace lockstep::diagnose {
namespace {

using nlohmann::json;
using telemetry::Point;
using telemetry::RunStore;
namespace metric = telemetry::metric;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
// The first steps warm caches, allocators and clocks up: a tenth of them, so many at most.
constexpr std::int64_t kMostWarmupSteps = 10;
constexpr std::int64_t kMostSteps = 2000;     // looked at; the last ones of a long run
constexpr std::int64_t kMostSpanSteps = 200;  // spans are read of

constexpr std::string_view kPerStep[] = {
    metric::kStepSeconds,        metric::kComputeSeconds, metric::kForwardSeconds,  metric::kBackwardSeconds,
    metric::kExposedCommSeconds, metric::kWaitSeconds,    metric::kDataSeconds,     metric::kOptimizerSeconds,
    metric::kCheckpointSeconds,  metric::kHostSeconds,    metric::kCpuSeconds,      metric::kCpuWaitSeconds,
    metric::kPreemptions,        metric::kTargets,        metric::kExpertImbalance, metric::kMemoryBytes,
    metric::kAllocatedBytes};
constexpr std::string_view kPerNode[] = {metric::kNodeCpuPercent, metric::kNodeAvailableBytes, metric::kGpuPercent,
                                         metric::kGpuMemoryBytes, metric::kGpuClockRatio,      metric::kGpuTemperature,
                                         metric::kGpuThrottled};

// The steps that count: those of rank 0 (else of the lowest rank that has any) without warm-up.
std::vector<std::int64_t> steady_steps(const RunStore& store, const std::string& run, const StepRange& range) {
  const std::string name(metric::kStepSeconds);
  const std::vector<int> ranks = store.ranks(run, name);
  if (ranks.empty()) return {};
  const auto last = store.last_step(run, name, ranks.front());
  if (!last) return {};
  const std::int64_t until = range.last ? std::min(*range.last, *last) : *last;
  const std::int64_t from = range.first ? *range.first : std::max<std::int64_t>(0, until - kMostSteps + 1);
  std::vector<std::int64_t> steps;
  for (const Point& point : store.points_after(run, name, ranks.front(), from - 1)) {
    if (point.step <= until) steps.push_back(point.step);
  }
  if (range.first || steps.empty() || steps.front() > 2 * kMostWarmupSteps) return steps;
  const auto warm = std::min<std::int64_t>(kMostWarmupSteps, static_cast<std::int64_t>(steps.size() / 10) + 1);
  if (static_cast<std::int64_t>(steps.size()) > warm + 2) steps.erase(steps.begin(), steps.begin() + warm);
  return steps;
}

void read_series(RunEvidence& evidence, const RunStore& store) {
  if (evidence.steps.empty()) return;
  const std::string& run = evidence.row.info.id;
  for (const std::string_view name : kPerStep) {
    const std::vector<int> ranks = store.ranks(run, std::string(name));
    if (ranks.empty()) continue;
    auto& rows = evidence.series[std::string(name)];
    rows.resize(evidence.places.size());
    for (const int rank : ranks) {
      if (rank < 0 || rank >= evidence.world()) continue;
      auto& row = rows[static_cast<std::size_t>(rank)];
      row.assign(evidence.steps.size(), kNan);
      for (const Point& point : store.points_after(run, std::string(name), rank, evidence.steps.front() - 1)) {
        const auto at = std::lower_bound(evidence.steps.begin(), evidence.steps.end(), point.step);
        if (at != evidence.steps.end() && *at == point.step)
          row[static_cast<std::size_t>(at - evidence.steps.begin())] = point.value;
      }
    }
  }
}

void read_nodes(RunEvidence& evidence, const RunStore& store) {
  const std::string& run = evidence.row.info.id;
  for (const std::string_view name : kPerNode) {
    for (const int rank : store.ranks(run, std::string(name))) {
      std::vector<double>& values = evidence.nodes[std::string(name)][rank];
      for (const Point& point : store.points(run, std::string(name), rank)) values.push_back(point.value);
    }
  }
}

void read_spans(RunEvidence& evidence, const RunStore& store) {
  if (evidence.steps.empty()) return;
  const std::string& run = evidence.row.info.id;
  std::vector<std::int64_t> kept;
  for (const std::int64_t step : store.span_steps(run)) {
    if (std::binary_search(evidence.steps.begin(), evidence.steps.end(), step)) kept.push_back(step);
  }
  if (kept.empty()) return;
  const std::size_t first = kept.size() > kMostSpanSteps ? kept.size() - kMostSpanSteps : 0;
  evidence.spans = store.spans(run, kept[first], kept.back());
  const bool several =
      std::any_of(evidence.places.begin(), evidence.places.end(), [](const Place& p) { return p.node > 0; });
  evidence.exchanges = match_exchanges(evidence.spans, several);
}

// What was planned; a run of another version or program may have a job or plan that cannot be read.
void read_plan(RunEvidence& evidence, const json& document) {
  try {
    if (!document.is_null()) evidence.plan = plan::read_plan(document, evidence.row.info.id);
    spec::Job job = spec::parse_job(evidence.row.info.job_yaml, evidence.row.info.id);
    evidence.run = evidence.plan ? plan::run_of(job, evidence.plan->best) : plan::run_of(job, plan::layout_of(job));
    evidence.job = std::move(job);
  } catch (const std::exception&) {
    evidence.run.reset();
  }
}

void fill_places(RunEvidence& evidence) {
  const int world = std::max(1, evidence.row.info.world);
  if (evidence.run && evidence.run->layout.world() == world) {
    evidence.places = places_of(evidence.run->layout, evidence.run->cluster);
  } else {
    evidence.places.resize(static_cast<std::size_t>(world));
    for (int rank = 0; rank < world; ++rank) evidence.places[static_cast<std::size_t>(rank)].dp = rank;
  }
  for (const telemetry::Event& event : evidence.events) {
    if (event.kind != telemetry::event_kind::kPlacement || !event.data.is_object()) continue;
    const auto nodes = event.data.find("nodes");
    if (nodes == event.data.end() || !nodes->is_array() || nodes->size() != evidence.places.size()) continue;
    for (std::size_t rank = 0; rank < nodes->size(); ++rank) {
      if ((*nodes)[rank].is_number_integer()) evidence.places[rank].node = (*nodes)[rank].get<int>();
    }
    evidence.nodes_known = true;
  }
}

std::vector<double> difference(const std::vector<double>& values, const std::vector<std::vector<double>>& others) {
  std::vector<double> result;
  for (std::size_t i = 0; i < values.size(); ++i) {
    std::vector<double> at;
    for (const std::vector<double>& other : others) {
      if (i < other.size() && std::isfinite(other[i])) at.push_back(other[i]);
    }
    result.push_back(at.empty() ? kNan : values[i] - median(at));
  }
  return result;
}

}  // namespace

std::vector<Place> places_of(const plan::Layout& layout, const spec::Cluster& cluster) {
  std::vector<Place> places(static_cast<std::size_t>(layout.world()));
  std::vector<int> node_of_device;
  int node = 0;
  for (const spec::NodeGroup& group : cluster.groups) {
    for (std::int64_t i = 0; i < group.nodes; ++i, ++node) {
      node_of_device.insert(node_of_device.end(), static_cast<std::size_t>(group.devices_per_node), node);
    }
  }
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    auto rest = static_cast<std::int64_t>(rank);
    const auto take = [&rest](std::int64_t size) {
      const std::int64_t place = rest % size;
      rest /= size;
      return place;
    };
    Place& place = places[rank];
    place.tp = take(layout.tp);
    place.cp = take(layout.cp);
    place.shard = take(layout.shard);
    place.dp = take(layout.dp);
    place.pp = take(layout.pp);
    if (rank < node_of_device.size()) place.node = node_of_device[rank];
  }
  return places;
}

const std::vector<double>& RunEvidence::of(std::string_view metric, int rank) const {
  static const std::vector<double> kNone;
  const auto found = series.find(metric);
  if (found == series.end() || rank < 0 || static_cast<std::size_t>(rank) >= found->second.size()) return kNone;
  return found->second[static_cast<std::size_t>(rank)];
}

double RunEvidence::usual(std::string_view metric, int rank) const { return median(of(metric, rank)); }

double RunEvidence::usual(std::string_view metric) const {
  std::vector<double> values;
  for (int rank = 0; rank < world(); ++rank) {
    if (!of(metric, rank).empty()) values.push_back(usual(metric, rank));
  }
  return median(values);
}

std::vector<double> RunEvidence::own_seconds(int rank) const {
  std::vector<double> own = of(metric::kStepSeconds, rank);
  const std::vector<double>& blocked = of(metric::kExposedCommSeconds, rank);
  for (std::size_t i = 0; i < own.size() && i < blocked.size(); ++i) own[i] -= blocked[i];
  return own;
}

std::vector<int> RunEvidence::peers(int rank) const {
  std::vector<int> same;
  for (int other = 0; other < world(); ++other) {
    if (places[static_cast<std::size_t>(other)].pp == places[static_cast<std::size_t>(rank)].pp) same.push_back(other);
  }
  return same;
}

std::vector<double> RunEvidence::excess(std::string_view metric, int rank) const {
  std::vector<std::vector<double>> others;
  for (const int peer : peers(rank)) {
    if (peer != rank && !of(metric, peer).empty()) others.push_back(of(metric, peer));
  }
  return others.empty() ? std::vector<double>() : difference(of(metric, rank), others);
}

std::vector<double> RunEvidence::own_excess(int rank) const {
  std::vector<std::vector<double>> others;
  for (const int peer : peers(rank)) {
    if (peer != rank) others.push_back(own_seconds(peer));
  }
  return others.empty() ? std::vector<double>() : difference(own_seconds(rank), others);
}

std::vector<int> RunEvidence::ranks_of_node(int node) const {
  std::vector<int> ranks;
  for (int rank = 0; rank < world(); ++rank) {
    if (places[static_cast<std::size_t>(rank)].node == node) ranks.push_back(rank);
  }
  return ranks;
}

RunEvidence read_evidence(const RunStore& store, const telemetry::RunRow& row, const StepRange& range) {
  RunEvidence evidence;
  evidence.row = row;
  evidence.events = store.events(row.info.id);
  read_plan(evidence, store.plan(row.info.id));
  fill_places(evidence);
  evidence.steps = steady_steps(store, row.info.id, range);
  read_series(evidence, store);
  read_nodes(evidence, store);
  read_spans(evidence, store);
  evidence.parts = parts_by_rank(evidence.exchanges, evidence.world());
  evidence.step_seconds = evidence.usual(metric::kStepSeconds);
  return evidence;
}

}  // namespace lockstep::diagnose
