#include "lockstep/cli/usage_metrics.h"

#include <cstdlib>
#include <string_view>
#include <utility>

#include "lockstep/elastic/health_monitor.h"

namespace lockstep::cli {

elastic::UsageOptions usage_options(std::function<std::string()> disk, bool gpus) {
  elastic::UsageOptions options;
  options.open_gpus = elastic::health_options_from_environment().open_gpus;
  if (!gpus && std::getenv("LOCKSTEP_NVML") == nullptr) options.open_gpus = [] { return nullptr; };
  options.disk = std::move(disk);
  return options;
}

std::map<int, std::vector<telemetry::Metric>> usage_metrics(const nlohmann::json& message) {
  namespace metric = telemetry::metric;
  std::map<int, std::vector<telemetry::Metric>> by_rank;
  const nlohmann::json ranks = message.value("ranks", nlohmann::json::object());
  for (const auto& [name, used] : ranks.items()) {
    std::vector<telemetry::Metric>& metrics = by_rank[std::atoi(name.c_str())];
    for (const auto& [what, value] : used.items()) {
      if (value.is_number()) metrics.push_back({what, value.get<double>()});
    }
  }
  if (by_rank.empty()) return by_rank;
  const std::pair<const char*, std::string_view> of_node[] = {{"cpu_percent", metric::kNodeCpuPercent},
                                                              {"available_bytes", metric::kNodeAvailableBytes},
                                                              {"disk_free_bytes", metric::kNodeDiskFreeBytes}};
  for (const auto& [key, name] : of_node) {
    const auto value = message.find(key);
    if (value != message.end() && value->is_number()) {
      by_rank.begin()->second.push_back({std::string(name), value->get<double>()});
    }
  }
  return by_rank;
}

}  // namespace lockstep::cli
