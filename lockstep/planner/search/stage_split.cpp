#include "lockstep/planner/search/stage_split.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::planner {
namespace {

double stage_time(std::int64_t layers, const StageLoad& load) {
  return (static_cast<double>(layers) + load.extra) / load.speed;
}

// Speed and memory of the weakest device that a pipeline rank owns.
struct RankDevices {
  double speed = 0;
  double memory = 0;
};

RankDevices weakest_device(const spec::Cluster& cluster, std::int64_t begin, std::int64_t end) {
  RankDevices weakest;
  std::int64_t first = 0;
  for (const spec::NodeGroup& group : cluster.groups) {
    const std::int64_t last = first + group.nodes * group.devices_per_node;
    if (begin < last && end > first) {
      const double speed = std::max(group.device.peak_bf16_flops, group.device.peak_fp32_flops);
      weakest.speed = weakest.speed > 0 ? std::min(weakest.speed, speed) : speed;
      weakest.memory =
          weakest.memory > 0 ? std::min(weakest.memory, group.device.memory_bytes) : group.device.memory_bytes;
    }
    first = last;
  }
  return weakest;
}

std::vector<std::int64_t> even_layers(std::int64_t layers, std::int64_t stages) {
  std::vector<std::int64_t> even(static_cast<std::size_t>(stages), layers / stages);
  for (std::int64_t i = 0; i < layers % stages; ++i) ++even[static_cast<std::size_t>(i)];
  return even;
}

}  // namespace

std::vector<std::int64_t> balance_layers(std::int64_t layers, std::span<const StageLoad> loads) {
  LOCKSTEP_ASSERT(!loads.empty() && layers >= static_cast<std::int64_t>(loads.size()), "a stage without a layer");
  std::vector<std::int64_t> dealt(loads.size(), 1);
  // Giving each next layer to the stage that would finish first, of equals the last, keeps the maximum least.
  using Finish = std::pair<double, std::ptrdiff_t>;  // with one layer more; minus the stage
  std::priority_queue<Finish, std::vector<Finish>, std::greater<>> next;
  for (std::size_t i = 0; i < loads.size(); ++i) next.emplace(stage_time(2, loads[i]), -static_cast<std::ptrdiff_t>(i));
  for (std::int64_t left = layers - static_cast<std::int64_t>(loads.size()); left > 0; --left) {
    const auto chosen = static_cast<std::size_t>(-next.top().second);
    next.pop();
    ++dealt[chosen];
    next.emplace(stage_time(dealt[chosen] + 1, loads[chosen]), -static_cast<std::ptrdiff_t>(chosen));
  }
  return dealt;
}

double slowest_stage(std::span<const std::int64_t> stage_layers, std::span<const StageLoad> loads) {
  double slowest = 0;
  for (std::size_t i = 0; i < loads.size(); ++i) slowest = std::max(slowest, stage_time(stage_layers[i], loads[i]));
  return slowest;
}

double head_in_layers(const spec::Model& model, std::int64_t sequence_length) {
  const double head = static_cast<double>(model.hidden) * static_cast<double>(model.classes > 0 ? 0 : model.vocab);
  const double active = static_cast<double>(spec::active_parameter_count_without_input_embedding(model));
  const auto layers = static_cast<double>(model.layers);
  // Causal scores and their product with the values take as many FLOPs as sequence x heads x head_dim weights.
  const double attention = static_cast<double>(sequence_length * model.heads * model.head_dim);
  return head / std::max(1.0, (active - head) / layers + attention);
}

std::vector<std::vector<std::int64_t>> stage_splits(const spec::Model& model, const spec::Cluster& cluster,
                                                    std::int64_t sequence_length, std::int64_t world, std::int64_t pp,
                                                    std::int64_t virtual_stages, plan::Schedule schedule) {
  std::vector<std::vector<std::int64_t>> splits{{}};
  const std::int64_t stages = pp * virtual_stages;
  if (pp == 1 || stages > model.layers) return splits;
  std::vector<StageLoad> counted(static_cast<std::size_t>(stages)), by_speed(counted), by_memory(counted);
  for (std::int64_t stage = 0; stage < stages; ++stage) {
    const std::int64_t rank = plan::pipeline_rank_of(schedule, static_cast<int>(pp), static_cast<int>(stage));
    const RankDevices device = weakest_device(cluster, rank * (world / pp), (rank + 1) * (world / pp));
    by_speed[static_cast<std::size_t>(stage)].speed = std::max(device.speed, 1.0);
    by_memory[static_cast<std::size_t>(stage)].speed = std::max(device.memory, 1.0);
  }
  counted.front().extra = counted.back().extra = 1;
  by_memory.front().extra = by_memory.back().extra = 1;
  by_speed.back().extra = head_in_layers(model, sequence_length);
  const std::vector<std::int64_t> even = even_layers(model.layers, stages);
  for (const std::vector<StageLoad>* loads : {&counted, &by_speed, &by_memory}) {
    std::vector<std::int64_t> split = balance_layers(model.layers, *loads);
    const bool better = slowest_stage(split, *loads) < slowest_stage(even, *loads) * (1 - 1e-9);
    const bool remainder = model.layers % stages != 0;  // later stages have the memory for it, the even split may not
    if ((better || remainder) && std::find(splits.begin(), splits.end(), split) == splits.end())
      splits.push_back(std::move(split));
  }
  return splits;
}

}  // namespace lockstep::planner
