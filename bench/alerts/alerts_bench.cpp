// False alarms of a month and delays of detection, over simulated runs (tests/telemetry/simulated_run.h); prints JSON.
//   bench_alerts [MONTHS of each kind] [RUNS of each shift]
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/base/clock.h"
#include "tests/telemetry/simulated_run.h"

namespace lockstep::telemetry {
namespace {

constexpr std::int64_t kBefore = 700;    // steps before a shift
constexpr std::int64_t kLongest = 1000;  // steps that are waited for an alert
constexpr std::uint64_t kSeeds = 1000000;

nlohmann::json false_alarms(StepNoise noise, double deviation, int months) {
  std::map<std::string, int> by_rule;
  int all = 0, with_any = 0;
  for (int month = 0; month < months; ++month) {
    SimulatedRun run({.seed = kSeeds + static_cast<std::uint64_t>(month),
                      .noise = noise,
                      .deviation = deviation,
                      .begins = month % 2 == 0});
    StepAlerts alerts(AlertContext{});
    bool any = false;
    for (std::int64_t step = 0; step < SimulatedRun::kMonth; ++step) {
      for (const Alert& alert : alerts.observe(run.next())) {
        if (!alert.firing) continue;
        ++by_rule[lockstep::to_string(alert.rule)];
        ++all;
        any = true;
      }
    }
    with_any += any ? 1 : 0;
  }
  return {{"noise", lockstep::to_string(noise)}, {"deviation", deviation}, {"months", months}, {"alarms", all},
          {"months_with_any", with_any},         {"by_rule", by_rule}};
}

// Steps from the shift to its alert; kLongest + 1: none.
std::vector<std::int64_t> delays(StepNoise noise, double deviation, double shift, int runs, bool of_loss) {
  std::vector<std::int64_t> found;
  for (int i = 0; i < runs; ++i) {
    SimulatedRun run(
        {.seed = 2 * kSeeds + static_cast<std::uint64_t>(i), .noise = noise, .deviation = deviation, .begins = false});
    StepAlerts alerts(AlertContext{});
    for (std::int64_t step = 0; step < kBefore + i % 100; ++step) alerts.observe(run.next());
    (of_loss ? run.loss_offset : run.slower) = shift;
    const auto wanted = of_loss ? spec::AlertRule::kLossSpike : spec::AlertRule::kSlowDown;
    std::int64_t step = 1;
    for (; step <= kLongest; ++step) {
      const auto told = alerts.observe(run.next());
      if (std::ranges::any_of(told, [&](const Alert& one) { return one.firing && one.rule == wanted; })) break;
    }
    found.push_back(step);
  }
  std::ranges::sort(found);
  return found;
}

nlohmann::json delay_figures(StepNoise noise, double deviation, double shift, int runs, bool of_loss) {
  const std::vector<std::int64_t> found = delays(noise, deviation, shift, runs, of_loss);
  const auto missed = std::ranges::count(found, kLongest + 1);
  return {{"noise", lockstep::to_string(noise)},
          {"deviation", deviation},
          {"shift", shift},
          {"of", of_loss ? "loss" : "step time"},
          {"runs", runs},
          {"median", found[found.size() / 2]},
          {"p95", found[found.size() * 95 / 100]},
          {"within_5", std::ranges::count_if(found, [](std::int64_t delay) { return delay <= 5; })},
          {"missed", missed}};
}

// What a step pays for its rules.
double microseconds_per_step() {
  SimulatedRun run({});
  std::vector<StepSample> samples;
  for (int i = 0; i < 20000; ++i) samples.push_back(run.next());
  StepAlerts alerts(AlertContext{});
  const Stopwatch watch;
  for (const StepSample& sample : samples) alerts.observe(sample);
  return 1e6 * watch.seconds() / static_cast<double>(samples.size());
}

}  // namespace
}  // namespace lockstep::telemetry

int main(int count, char** arguments) {
  using namespace lockstep::telemetry;
  const int months = count > 1 ? std::atoi(arguments[1]) : 100, runs = count > 2 ? std::atoi(arguments[2]) : 200;
  nlohmann::json report = {{"schema", "lockstep.bench.alerts/1"}, {"microseconds_per_step", microseconds_per_step()}};
  for (const double deviation : {0.003, 0.01, 0.02, 0.05}) {
    for (int noise = 0; noise <= static_cast<int>(StepNoise::kWandering); ++noise) {
      report["false_alarms"].push_back(false_alarms(static_cast<StepNoise>(noise), deviation, months));
      for (const double shift : {0.02, 0.03, 0.05, 0.1}) {
        report["delays"].push_back(delay_figures(static_cast<StepNoise>(noise), deviation, shift, runs, false));
      }
    }
  }
  for (const double shift : {0.05, 0.1, 0.2, 0.5}) {
    report["delays"].push_back(delay_figures(StepNoise::kNormal, 0.01, shift, runs, true));
  }
  fmt::print("{}\n", report.dump(1));
}
