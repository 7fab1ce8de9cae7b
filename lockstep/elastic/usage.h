// What the processes of a node use: processor time and memory from /proc, where there are NVIDIA GPUs what those do,
// and what is free of a disk.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "lockstep/elastic/gpu_state.h"

namespace lockstep::elastic {

struct UsageOptions {
  std::string root = "/";  // of /proc
  std::function<std::unique_ptr<Gpus>()> open_gpus = [] { return open_nvml(); };
  std::function<std::string()> disk = {};  // a folder of it, as soon as it is known; empty: none
};

// Never waits: GPUs and disks are asked on a thread of their own.
class UsageSampler {
 public:
  explicit UsageSampler(const UsageOptions& options = {});
  ~UsageSampler();
  UsageSampler(const UsageSampler&) = delete;
  UsageSampler& operator=(const UsageSampler&) = delete;

  // {"ranks": {"3": {cpu_percent?, resident_bytes, gpu_percent?, gpu_memory_bytes?, gpu_clock_ratio?,
  // gpu_temperature_celsius?, gpu_throttled?}}, "cpu_percent"?, "available_bytes"?, "disk_free_bytes"?}. Percentages
  // are of one core, since the last call; of the node, of all cores. The GPU of a rank is the one that its place among
  // the ranks of the node numbers.
  nlohmann::json sample(const std::map<int, int>& pids_by_rank);

 private:
  struct Shared;
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace lockstep::elastic
