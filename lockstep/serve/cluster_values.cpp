#include "lockstep/serve/cluster_values.h"

#include <algorithm>
#include <map>

#include "lockstep/base/clock.h"
#include "lockstep/serve/run_values.h"

namespace lockstep::serve {
namespace {

using nlohmann::json;
namespace metric = telemetry::metric;

constexpr std::size_t kMostRuns = 50;
constexpr std::size_t kMostRanks = 1024;
constexpr double kRecentSeconds = 600.0;  // that a run's end is ago
constexpr std::size_t kMostHealthEvents = 50;

constexpr std::string_view kOfNodes[] = {
    metric::kNodeCpuPercent, metric::kNodeAvailableBytes, metric::kNodeDiskFreeBytes,
    metric::kGpuPercent,     metric::kGpuMemoryBytes,     metric::kGpuClockRatio,
    metric::kGpuTemperature, metric::kGpuThrottled,       "cpu_percent",
    "resident_bytes"};

// The host of each rank, as the run told it when it began; of a run that did not, the first rank's.
std::map<int, std::string> hosts_of(const telemetry::RunStore& store, const telemetry::RunRow& row) {
  std::map<int, std::string> hosts{{0, row.info.host}};
  const auto placed = store.events_after(row.info.id, 0.0, telemetry::event_kind::kPlacement);
  if (placed.empty()) return hosts;
  const json& data = placed.back().data;
  if (!data.is_object() || !data.contains("nodes") || !data["nodes"].is_array() || !data.contains("hosts") ||
      !data["hosts"].is_array()) {
    return hosts;
  }
  for (std::size_t rank = 0; rank < data["nodes"].size(); ++rank) {
    const json& node = data["nodes"][rank];
    if (!node.is_number_unsigned() || node.get<std::size_t>() >= data["hosts"].size()) continue;
    const json& host = data["hosts"][node.get<std::size_t>()];
    if (host.is_string()) hosts[static_cast<int>(rank)] = host.get<std::string>();
  }
  return hosts;
}

json ranks_of(const telemetry::RunStore& store, const telemetry::RunRow& row) {
  const std::string& run = row.info.id;
  const std::map<int, std::string> hosts = hosts_of(store, row);
  std::map<int, json> values;
  std::map<int, double> times;
  for (const std::string_view name : kOfNodes) {
    const std::string wanted(name);
    for (const int rank : store.ranks(run, wanted)) {
      const auto step = store.last_step(run, wanted, rank);
      const auto points = step ? store.points_after(run, wanted, rank, *step - 1, 1) : std::vector<telemetry::Point>();
      if (points.empty() || (values.size() >= kMostRanks && !values.contains(rank))) continue;
      values[rank][wanted] = points.front().value;
      times[rank] = std::max(times[rank], points.front().time);
    }
  }
  json ranks = json::array();
  for (auto& [rank, found] : values) {
    const auto host = hosts.find(rank);
    ranks.push_back({{"rank", rank},
                     {"host", host != hosts.end() ? json(host->second) : json()},
                     {"time", times[rank]},
                     {"values", std::move(found)}});
  }
  return ranks;
}

json health_of(const telemetry::RunStore& store, const std::string& run) {
  auto events = store.events_after(run, 0.0, telemetry::event_kind::kNodeHealth);
  if (events.size() > kMostHealthEvents) events.erase(events.begin(), events.end() - kMostHealthEvents);
  json list = json::array();
  for (const telemetry::Event& event : events) list.push_back(event_json(event));
  return list;
}

}  // namespace

json cluster_json(const telemetry::RunStore& store, json dcgm) {
  json runs = json::array();
  const double now = unix_seconds();
  for (const telemetry::RunRow& row : store.runs(kMostRuns)) {
    const bool running = row.status == telemetry::RunStatus::kRunning;
    if (!running && (row.ended_at <= 0 || now - row.ended_at > kRecentSeconds)) continue;
    runs.push_back({{"id", row.info.id},
                    {"name", row.info.name},
                    {"status", telemetry::to_string(row.status)},
                    {"host", row.info.host},
                    {"world", row.info.world},
                    {"ranks", ranks_of(store, row)},
                    {"health", health_of(store, row.info.id)}});
  }
  return {{"schema", "lockstep.api.cluster/1"}, {"time", now}, {"runs", std::move(runs)}, {"dcgm", std::move(dcgm)}};
}

}  // namespace lockstep::serve
