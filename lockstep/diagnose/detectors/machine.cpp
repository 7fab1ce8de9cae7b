// The machine under the ranks: clocks, cores, memory.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "lockstep/base/units.h"
#include "lockstep/diagnose/detectors/detectors.h"
#include "lockstep/diagnose/statistics.h"

namespace lockstep::diagnose {
namespace {

namespace metric = telemetry::metric;

constexpr double kFullClock = 0.85;        // of the highest clock; boost states are above it
constexpr double kOftenThrottled = 0.25;   // of the samples
constexpr double kAcceptedCpuWait = 0.10;  // of the step: what a machine that does something else as well takes
constexpr double kDaySeconds = 86400.0;
constexpr double kLeastCreep = 0.02;  // of what is held, over the steps looked at

const std::map<int, std::vector<double>>* of_nodes(const RunEvidence& evidence, std::string_view name) {
  const auto found = evidence.nodes.find(name);
  return found == evidence.nodes.end() ? nullptr : &found->second;
}

double usual_of_node(const RunEvidence& evidence, std::string_view name, int rank) {
  const auto* all = of_nodes(evidence, name);
  if (all == nullptr || !all->contains(rank)) return 0.0;
  return median(all->at(rank));
}

// Bytes that a rank gains per step where it gains them all the time; 0 where it levels off.
double creep_per_step(const std::vector<double>& held) {
  constexpr std::size_t kLeastSteps = 12;
  if (held.size() < kLeastSteps) return 0.0;
  const double whole = slope(held);
  const std::size_t third = held.size() / 3;
  for (std::size_t part = 0; part < 3; ++part) {
    if (slope(std::span(held).subspan(part * third, third)) < 0.3 * whole) return 0.0;
  }
  const double grown = whole * static_cast<double>(held.size());
  return grown > kLeastCreep * median(held) ? std::max(whole, 0.0) : 0.0;
}

// Bytes that are left for one more; what a plan knows of the device, else what its node has.
double room_of(const RunEvidence& evidence, int rank, double held) {
  const double capacity = evidence.plan ? evidence.plan->best.memory.capacity : 0.0;
  double room = capacity > 0.0 ? capacity - held : 0.0;
  if (const auto* available = of_nodes(evidence, metric::kNodeAvailableBytes)) {
    for (const auto& [first, values] : *available) {
      if (values.empty() || first >= evidence.world()) continue;
      const Place &node = evidence.places[static_cast<std::size_t>(first)],
                  &own = evidence.places[static_cast<std::size_t>(rank)];
      if (node.node == own.node) room = room > 0.0 ? std::min(room, values.back()) : values.back();
    }
  }
  return room;
}

}  // namespace

Findings find_throttling(const RunEvidence& evidence) {
  const auto* clocks = of_nodes(evidence, metric::kGpuClockRatio);
  if (clocks == nullptr) return {};
  std::vector<int> ranks;
  double slowest = 1.0;
  for (const auto& [rank, values] : *clocks) {
    const auto* throttled = of_nodes(evidence, metric::kGpuThrottled);
    const bool named = throttled != nullptr && throttled->contains(rank) && mean(throttled->at(rank)) > kOftenThrottled;
    const double ratio = median(values);
    if (values.empty() || ratio >= kFullClock || !named) continue;
    ranks.push_back(rank);
    slowest = std::min(slowest, ratio);
  }
  if (ranks.empty()) return {};
  // Peers that run at full clock tell what it costs; where all are slow the clock itself does.
  double excess = 0.0;
  for (const int rank : ranks) excess = std::max(excess, median(evidence.own_excess(rank)));
  const double by_clock = evidence.usual(metric::kComputeSeconds) * (1.0 - slowest);
  const bool all = static_cast<int>(ranks.size()) == evidence.world();
  std::string text = fmt::format("{} run{} at {:.0f}% of the highest clock and the driver names a fault as the reason",
                                 named_ranks(ranks), ranks.size() == 1 ? "s" : "", 100.0 * slowest);
  const double heat = usual_of_node(evidence, metric::kGpuTemperature, ranks.front());
  if (heat > 0.0) text += fmt::format(" at {:.0f} degrees", heat);
  return {make_finding(Cause::kThrottling, 0.9, evidence.share(all || excess <= 0.0 ? by_clock : excess), ranks, text,
                       "cool the node or give it power (fans, dust, inlet temperature, power cap: `nvidia-smi -q -d "
                       "PERFORMANCE`), or cordon it")};
}

Findings find_oversubscription(const RunEvidence& evidence) {
  if (!evidence.has(metric::kCpuWaitSeconds)) return {};
  std::vector<double> waits;
  waits.reserve(static_cast<std::size_t>(evidence.world()));
  for (int rank = 0; rank < evidence.world(); ++rank)
    waits.push_back(trimmed_mean(evidence.of(metric::kCpuWaitSeconds, rank)));
  const double longest = *std::max_element(waits.begin(), waits.end());
  if (longest < kAcceptedCpuWait * evidence.step_seconds) return {};
  std::vector<int> ranks;
  for (int rank = 0; rank < evidence.world(); ++rank) {
    if (waits[static_cast<std::size_t>(rank)] > 0.5 * longest) ranks.push_back(rank);
  }
  if (static_cast<int>(ranks.size()) == evidence.world() && evidence.world() > 1) ranks.clear();
  std::string text =
      fmt::format("{} ready to run and without a core for {} of a {} step",
                  ranks.empty() ? "ranks are" : named_ranks(ranks) + (ranks.size() == 1 ? " is" : " are"),
                  format_seconds(longest), format_seconds(evidence.step_seconds));
  const double preempted = evidence.usual(metric::kPreemptions);
  if (preempted >= 1.0) text += fmt::format(", preempted {:.0f} times in it", preempted);
  const double busy = usual_of_node(evidence, metric::kNodeCpuPercent, 0);
  if (busy > 0.0) text += fmt::format("; the node's processors are {:.0f}% busy", busy);
  const std::int64_t threads = evidence.plan ? evidence.plan->best.knobs.threads_per_rank : 0;
  return {make_finding(
      Cause::kOversubscription, 0.9, evidence.share(longest), ranks, text,
      threads > 1 ? train_with(evidence, fmt::format("threads_per_rank={}", std::max<std::int64_t>(1, threads / 2))) +
                        ": no more threads than cores; or end what else runs there"
                  : "end what else runs on that node, or start fewer ranks on it: there are more threads than "
                    "cores")};
}

Findings find_memory_pressure(const RunEvidence& evidence) {
  Findings found;
  double soonest = kDaySeconds;
  for (int rank = 0; rank < evidence.world(); ++rank) {
    const std::vector<double>& held = evidence.of(metric::kAllocatedBytes, rank);
    const double creep = creep_per_step(held);
    if (creep <= 0.0 || evidence.step_seconds <= 0.0) continue;
    const double room = room_of(evidence, rank, held.back());
    const double steps = room > 0.0 ? room / creep : kDaySeconds / evidence.step_seconds;
    const double left = steps * evidence.step_seconds;
    if (left >= soonest) continue;
    soonest = left;
    std::vector<int> ranks = {rank};
    // What a run that ends then loses of the next day.
    found = {make_finding(
        Cause::kMemoryPressure, 0.85, 100.0 * (1.0 - left / kDaySeconds), ranks,
        fmt::format("rank {} holds {} more after every step and levels off nowhere; {} are left, {:.0f} steps "
                    "or {}",
                    rank, format_bytes(creep), format_bytes(room), steps, format_seconds(left)),
        "find what keeps tensors from step to step (lists of losses or outputs); until then checkpoint.every "
        "below that time and --resume")};
  }
  return found;
}

}  // namespace lockstep::diagnose
