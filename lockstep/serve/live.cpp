#include "lockstep/serve/live.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/clock.h"
#include "lockstep/serve/api.h"
#include "lockstep/serve/run_values.h"

namespace lockstep::serve {
namespace {

using nlohmann::json;
using telemetry::RunStatus;

// In the order in which they find room in a tick.
constexpr std::string_view kTickMetrics[] = {telemetry::metric::kLoss,
                                             telemetry::metric::kTokensPerSecond,
                                             telemetry::metric::kSamplesPerSecond,
                                             telemetry::metric::kStepSeconds,
                                             telemetry::metric::kMfu,
                                             telemetry::metric::kEfficiency,
                                             telemetry::metric::kGradientNorm,
                                             telemetry::metric::kMemoryBytes,
                                             telemetry::metric::kGoodput,
                                             telemetry::metric::kLearningRate,
                                             telemetry::metric::kEvaluationLoss,
                                             telemetry::metric::kEvaluationAccuracy,
                                             telemetry::metric::kComputeSeconds,
                                             telemetry::metric::kExposedCommSeconds,
                                             telemetry::metric::kWaitSeconds,
                                             telemetry::metric::kDataSeconds,
                                             telemetry::metric::kOptimizerSeconds,
                                             telemetry::metric::kCheckpointSeconds,
                                             telemetry::metric::kHostSeconds,
                                             telemetry::metric::kAuxiliaryLoss,
                                             telemetry::metric::kAllocatedBytes};
constexpr std::size_t kMostTickMetrics = 32;
constexpr std::size_t kLongestMetricName = 64;
constexpr double kMetricsFreshSeconds = 5.0;
constexpr double kRowFreshSeconds = 1.0;
constexpr double kBacklogSeconds = 300.0;  // of events, for viewers that come back
constexpr double kLateSeconds = 5.0;       // events of other ranks may arrive so much later than newer ones
constexpr std::size_t kListed = 200;
constexpr std::size_t kMostEventBytes = 16 << 10;

std::int64_t milliseconds(double seconds) {
  return static_cast<std::int64_t>(std::llround(std::max(0.0, seconds) * 1000.0));
}

// A viewer takes only so much at a time; /events has all of it.
std::string event_line(const telemetry::Event& event) {
  std::string whole = dump(event_json(event));
  if (whole.size() <= kMostEventBytes) return whole;
  telemetry::Event part = event;
  part.data = {{"left_out", true}};
  part.message.resize(std::min<std::size_t>(part.message.size(), 1000));
  part.kind.resize(std::min<std::size_t>(part.kind.size(), 100));
  return dump(event_json(part));
}

// Metrics whose step is the second of the run are no part of a step.
bool counts_seconds(std::string_view name) {
  return name.starts_with("node_") || name.starts_with("gpu_") || name == "cpu_percent" || name == "resident_bytes";
}

}  // namespace

std::string LiveMessage::text() const {
  static constexpr const char* kNames[] = {"tick", "event", "end", "runs"};
  return fmt::format("event: {}\nid: {}-{}\ndata: {}\n\n", kNames[static_cast<int>(kind)], step, time_ms, data);
}

Live::Live(const std::filesystem::path& home, Send send, LiveOptions options)
    : stores_(home), send_(std::move(send)), options_(options), thread_([this] { ask_all(); }) {}

Live::~Live() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void Live::watch(const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<Topic>& topic = topics_[name];
    if (!topic) topic = std::make_shared<Topic>();
    ++topic->watchers;
  }
  wake_.notify_all();
}

void Live::unwatch(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = topics_.find(name);
  if (found != topics_.end() && --found->second->watchers <= 0) topics_.erase(found);
}

std::size_t Live::asked() const {
  const std::lock_guard lock(mutex_);
  return asked_;
}

void Live::ask_all() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    std::string name;
    std::shared_ptr<Topic> first;
    for (const auto& [id, topic] : topics_) {
      if (!first || topic->next < first->next) name = id, first = topic;
    }
    if (!first) {
      wake_.wait(lock);
      continue;
    }
    const double now = monotonic_seconds();
    if (first->next > now) {
      wake_.wait_for(lock, std::chrono::duration<double>(first->next - now));
      continue;
    }
    ++asked_;
    lock.unlock();
    const double next = ask(name, *first);
    lock.lock();
    first->next = next;
  }
}

double Live::ask(const std::string& name, Topic& topic) {
  const Stopwatch watch;
  std::vector<LiveMessage> found;
  try {
    name.empty() ? ask_list(topic, found) : ask_run(name, topic, found);
  } catch (const std::exception&) {  // a store that is busy or broken for a while; questions of the page say why
  }
  const double wanted = name.empty()                ? options_.list_seconds
                        : topic.status == "running" ? options_.tick_seconds
                                                    : options_.slow_seconds;
  for (LiveMessage& message : found) send_(name, std::move(message));
  return monotonic_seconds() + std::max(wanted, watch.seconds() / options_.most_share);
}

void Live::ask_run(const std::string& id, Topic& topic, std::vector<LiveMessage>& found) {
  const double now = monotonic_seconds();
  if (now - topic.metrics_read_at > kMetricsFreshSeconds) {
    read_metrics(id, topic);
    topic.metrics_read_at = now;
  }
  tell_tick(id, topic, found);
  if (now - topic.row_read_at > kRowFreshSeconds) {
    tell_events(id, topic, found);
    tell_status(id, topic, found);
    topic.row_read_at = now;
  }
}

void Live::read_metrics(const std::string& id, Topic& topic) {
  const telemetry::RunStore& store = stores_.runs();
  const std::vector<std::string> names = store.metric_names(id);  // sorted
  topic.metrics.clear();
  const auto add = [&](const std::string& name) {
    if (topic.metrics.size() >= kMostTickMetrics || name.size() > kLongestMetricName || counts_seconds(name)) return;
    const std::vector<int> ranks = store.ranks(id, name);
    if (!ranks.empty()) topic.metrics.emplace_back(name, ranks.front());
  };
  for (const std::string_view name : kTickMetrics) {
    if (std::binary_search(names.begin(), names.end(), name)) add(std::string(name));
  }
  for (const std::string& name : names) {
    if (std::find(std::begin(kTickMetrics), std::end(kTickMetrics), name) == std::end(kTickMetrics)) add(name);
  }
}

void Live::tell_tick(const std::string& id, Topic& topic, std::vector<LiveMessage>& found) {
  const telemetry::RunStore& store = stores_.runs();
  std::int64_t newest = topic.step;
  double time = 0.0;
  json values = json::object();
  std::size_t bytes = 128;  // of what is around them
  for (const auto& [name, rank] : topic.metrics) {
    const auto last = store.last_step(id, name, rank);
    if (!last || *last <= topic.step) {
      if (values.empty() && name == telemetry::metric::kStepSeconds && topic.step >= 0) return;  // no new step
      continue;
    }
    // A tick tells one step: what was recorded long before (an evaluation) or just now is no part of it.
    if (values.empty()) newest = *last;
    if (*last < newest) continue;
    const auto points = store.points_after(id, name, rank, newest - 1, 1);
    bytes += name.size() + 32;
    if (points.empty() || points.front().step != newest || bytes > kMostTickBytes) continue;
    values[name] = points.front().value;
    time = points.front().time;
  }
  if (values.empty()) return;
  topic.step = newest;
  found.push_back({LiveMessage::Kind::kTick, topic.step, milliseconds(topic.event_time),
                   dump({{"step", newest}, {"time", time}, {"values", std::move(values)}})});
}

void Live::tell_events(const std::string& id, Topic& topic, std::vector<LiveMessage>& found) {
  const double after = topic.event_time < 0 ? unix_seconds() - kBacklogSeconds : topic.event_time - kLateSeconds;
  std::set<std::string> seen;
  for (const telemetry::Event& event : stores_.runs().events_after(id, after)) {
    std::string data = event_line(event);
    if (topic.events_at_time.contains(data)) {
      seen.insert(std::move(data));
      continue;
    }
    topic.event_time = std::max(topic.event_time, event.time);
    found.push_back({LiveMessage::Kind::kEvent, topic.step, milliseconds(event.time), data});
    seen.insert(std::move(data));
  }
  topic.events_at_time = std::move(seen);
  if (topic.event_time < 0) topic.event_time = after;
}

void Live::tell_status(const std::string& id, Topic& topic, std::vector<LiveMessage>& found) {
  const telemetry::RunRow row = run_of_id(stores_.runs(), id);
  const std::string status = telemetry::to_string(row.status);
  if (status != topic.status && row.status != RunStatus::kRunning) {
    found.push_back({LiveMessage::Kind::kEnd, topic.step, milliseconds(topic.event_time),
                     dump({{"status", status},
                           {"ended_at", row.ended_at > 0 ? json(row.ended_at) : json()},
                           {"exit_reason", row.exit_reason}})});
  }
  topic.status = status;
}

void Live::ask_list(Topic& topic, std::vector<LiveMessage>& found) {
  std::map<std::string, std::string> rows;
  json changed = json::array();
  for (const telemetry::RunRow& row : stores_.runs().runs(kListed)) {
    std::string shown = fmt::format("{} {} {}", telemetry::to_string(row.status), row.ended_at, row.info.name);
    const auto known = topic.rows.find(row.info.id);
    if (topic.listed && (known == topic.rows.end() || known->second != shown) && changed.size() < 20) {
      changed.push_back(row.info.id);
    }
    rows[row.info.id] = std::move(shown);
  }
  const bool differs = topic.listed && rows != topic.rows;
  topic.rows = std::move(rows);
  topic.listed = true;
  if (differs)
    found.push_back({LiveMessage::Kind::kRuns, 0, milliseconds(unix_seconds()), dump({{"changed", changed}})});
}

}  // namespace lockstep::serve
