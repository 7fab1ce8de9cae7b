#include "lockstep/elastic/usage.h"

#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <optional>
#include <sstream>
#include <vector>

#include "lockstep/base/clock.h"
#include "lockstep/base/text.h"
#include "lockstep/elastic/repeater.h"

namespace lockstep::elastic {
namespace {

constexpr double kLookSeconds = 5.0;

struct ProcessUsage {
  double seconds = 0.0;  // of processors
  double resident_bytes = 0.0;
};

std::optional<ProcessUsage> usage_of(const std::string& root, int pid) {
  std::ifstream file(root + "proc/" + std::to_string(pid) + "/stat");
  std::string text;
  if (!std::getline(file, text)) return std::nullopt;
  const std::size_t end = text.rfind(')');  // the command may hold spaces and ')'
  if (end == std::string::npos) return std::nullopt;
  const auto fields = split(std::string_view(text).substr(end + 1), ' ');  // "", state, ppid, ...
  constexpr std::size_t kUser = 12, kSystem = 13, kResidentPages = 22;
  if (fields.size() <= kResidentPages) return std::nullopt;
  const auto number = [&](std::size_t field) { return std::strtod(fields[field].c_str(), nullptr); };
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK)), page = static_cast<double>(::sysconf(_SC_PAGESIZE));
  return ProcessUsage{(number(kUser) + number(kSystem)) / ticks, number(kResidentPages) * page};
}

// Busy and all time of the node's processors, in ticks.
std::optional<std::pair<double, double>> node_ticks(const std::string& root) {
  std::ifstream file(root + "proc/stat");
  std::string line;
  if (!std::getline(file, line) || line.rfind("cpu ", 0) != 0) return std::nullopt;
  std::istringstream words(line.substr(4));
  std::vector<double> ticks;
  for (double value; words >> value && ticks.size() < 8;) ticks.push_back(value);  // guests are counted in user
  if (ticks.size() < 5) return std::nullopt;
  double all = 0;
  for (const double value : ticks) all += value;
  return std::pair(all - ticks[3] - ticks[4], all);
}

std::optional<double> available_bytes(const std::string& root) {
  std::ifstream file(root + "proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("MemAvailable:", 0) == 0) return 1024.0 * std::strtod(line.c_str() + 13, nullptr);
  }
  return std::nullopt;
}

}  // namespace

struct UsageSampler::Shared {
  std::mutex mutex;
  std::vector<GpuState> gpus;
  std::optional<double> disk_free_bytes;
};

struct UsageSampler::Impl {
  std::string root;
  std::shared_ptr<Shared> shared = std::make_shared<Shared>();
  std::optional<Repeater> gpus, disk;
  std::map<int, double> seconds;  // of each process
  std::optional<std::pair<double, double>> node;
  double last = 0.0;
};

UsageSampler::UsageSampler(const UsageOptions& options) : impl_(std::make_unique<Impl>()) {
  impl_->root = options.root;
  if (options.disk) {
    impl_->disk.emplace(kLookSeconds, [folder = options.disk, shared = impl_->shared] {
      std::error_code error;
      const std::filesystem::space_info space = std::filesystem::space(folder(), error);
      const std::lock_guard lock(shared->mutex);
      shared->disk_free_bytes = error ? std::nullopt : std::optional(static_cast<double>(space.available));
    });
  }
  const std::shared_ptr<Gpus> gpus = options.open_gpus();
  if (!gpus) return;
  impl_->gpus.emplace(kLookSeconds, [gpus, shared = impl_->shared] {
    std::vector<GpuState> states = gpus->look();
    const std::lock_guard lock(shared->mutex);
    shared->gpus = std::move(states);
  });
}

UsageSampler::~UsageSampler() = default;

namespace {

void add_gpu(const GpuState& gpu, nlohmann::json& told) {
  if (gpu.busy_percent) told["gpu_percent"] = *gpu.busy_percent;
  if (gpu.used_bytes) told["gpu_memory_bytes"] = *gpu.used_bytes;
  if (gpu.clock_mhz && gpu.full_clock_mhz && *gpu.full_clock_mhz > 0) {
    told["gpu_clock_ratio"] = static_cast<double>(*gpu.clock_mhz) / *gpu.full_clock_mhz;
  }
  if (gpu.temperature) told["gpu_temperature_celsius"] = *gpu.temperature;
  told["gpu_throttled"] = gpu.slowdowns != 0 ? 1 : 0;
}

}  // namespace

nlohmann::json UsageSampler::sample(const std::map<int, int>& pids_by_rank) {
  const double now = monotonic_seconds(), since = now - std::exchange(impl_->last, now);
  std::vector<GpuState> gpus;
  std::optional<double> disk_free_bytes;
  {
    const std::lock_guard lock(impl_->shared->mutex);
    gpus = impl_->shared->gpus;
    disk_free_bytes = impl_->shared->disk_free_bytes;
  }
  nlohmann::json result = {{"ranks", nlohmann::json::object()}};
  std::map<int, double> seconds;
  std::size_t local_rank = 0;
  for (const auto& [rank, pid] : pids_by_rank) {
    const std::size_t place = local_rank++;
    const auto usage = usage_of(impl_->root, pid);
    if (!usage) continue;
    nlohmann::json& told = result["ranks"][std::to_string(rank)];
    told["resident_bytes"] = usage->resident_bytes;
    if (const auto before = impl_->seconds.find(pid); before != impl_->seconds.end() && since > 0) {
      told["cpu_percent"] = 100.0 * std::max(0.0, usage->seconds - before->second) / since;
    }
    seconds[pid] = usage->seconds;
    if (place < gpus.size()) add_gpu(gpus[place], told);
  }
  impl_->seconds = std::move(seconds);
  if (disk_free_bytes) result["disk_free_bytes"] = *disk_free_bytes;
  if (const auto available = available_bytes(impl_->root)) result["available_bytes"] = *available;
  const auto node = node_ticks(impl_->root);
  if (node && impl_->node && node->second > impl_->node->second) {
    result["cpu_percent"] = 100.0 * (node->first - impl_->node->first) / (node->second - impl_->node->second);
  }
  impl_->node = node;
  return result;
}

}  // namespace lockstep::elastic
