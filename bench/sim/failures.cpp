// How fast failures are simulated, in seconds of the core that does it. One JSON object on standard output.
//
//   events    a model that SimPy runs too (nodes.py): nodes that fail and are repaired, one pending event each
//   study     a run of 12,500 nodes over 90 days, many times, on all cores
//   growth    the same study, one sample, for clusters of growing size
//
// Usage: bench_failures [--quick]
#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string_view>
#include <thread>

#include <nlohmann/json.hpp>

#include "lockstep/sim/event_queue.h"
#include "lockstep/sim/failures/bursts.h"
#include "lockstep/sim/failures/goodput.h"
#include "lockstep/sim/random.h"

namespace {

using namespace lockstep::sim;

constexpr double kDay = 86400.0;

double core_seconds() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Every node works for an exponential time, then is repaired for one. Down nodes are weighed by time, so that the model
// can be checked against repair / (work + repair).
nlohmann::json nodes_that_fail(int nodes, double work_days, double repair_days, double days) {
  const double before = core_seconds();
  Random random(1);
  EventQueue queue;
  queue.reserve(static_cast<std::size_t>(nodes));
  std::vector<bool> is_down(static_cast<std::size_t>(nodes));
  for (int node = 0; node < nodes; ++node)
    queue.add(random.exponential(1.0 / work_days), static_cast<std::uint32_t>(node));
  std::int64_t events = 0;
  double down = 0.0, down_days = 0.0, now = 0.0;
  while (queue.next_time() < days) {
    const auto [time, node] = queue.pop();
    down_days += down * (time - now);
    now = time;
    ++events;
    const bool repaired = is_down[node];
    is_down[node] = !repaired;
    down += repaired ? -1.0 : 1.0;
    queue.add(now + random.exponential(1.0 / (repaired ? work_days : repair_days)), node);
  }
  const double seconds = core_seconds() - before;
  return {{"nodes", nodes},
          {"days", days},
          {"events", events},
          {"core_seconds", seconds},
          {"events_per_second", static_cast<double>(events) / seconds},
          {"mean_down", down_days / now},
          {"expected_down", nodes * repair_days / (work_days + repair_days)}};
}

RunOnNodes run_of(int nodes) {
  RunOnNodes run;
  run.nodes = nodes;
  run.spares = nodes / 50;
  run.from_memory = true;
  run.detect_seconds = 1;
  run.memory_restart_seconds = 2;
  return run;
}

// 6.5 faults per 1,000 node-days, in bursts: the worst of two research clusters (Kokolis et al. 2025).
nlohmann::json study_of(int nodes, double days, int samples, int threads) {
  const auto source = faults_in_bursts(usual_bursts(6.5 / 1000.0 / kDay));
  const double core = core_seconds(), wall = wall_seconds();
  const auto outcomes = study(*source, run_of(nodes), days * kDay, samples, 1, threads);
  const double core_used = core_seconds() - core, wall_used = wall_seconds() - wall;
  std::int64_t events = 0;
  double goodput = 0.0;
  for (const Outcome& outcome : outcomes) {
    events += outcome.events;
    goodput += outcome.goodput() / samples;
  }
  return {{"nodes", nodes},
          {"days", days},
          {"samples", samples},
          {"threads", threads},
          {"events", events},
          {"core_seconds", core_used},
          {"wall_seconds", wall_used},
          {"core_seconds_per_sample", core_used / samples},
          {"mean_goodput", goodput}};
}

}  // namespace

int main(int argc, char** argv) {
  const bool quick = argc > 1 && std::string_view(argv[1]) == "--quick";
  nlohmann::json document;
  document["events"] = nlohmann::json::array();
  for (int i = 0; i < (quick ? 1 : 5); ++i)
    document["events"].push_back(nodes_that_fail(12'500, 1.0, 1.0 / 12.0, quick ? 30 : 200));
  document["month"] = nodes_that_fail(12'500, 1000.0 / 6.5, 133.0 / 24.0, 30);
  const int threads = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  document["study"] = study_of(12'500, 90, quick ? 50 : 1000, threads);
  document["growth"] = nlohmann::json::array();
  for (const int nodes : {125, 400, 1'250, 4'000, 12'500, 40'000, 125'000}) {
    const int samples = std::max(quick ? 2 : 20, (quick ? 1'000 : 100'000) / nodes);
    document["growth"].push_back(study_of(nodes, 90, samples, 1));
  }
  std::printf("%s\n", document.dump().c_str());
  return 0;
}
