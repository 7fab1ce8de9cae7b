#include "lockstep/tune/study/choice.h"

#include <algorithm>
#include <cmath>

namespace lockstep::tune {
namespace {

// In the logarithm of throughput, expected: of one knob, and of all together.
constexpr double kWorthNothing = 0.0015, kGivenAwayAtMost = 0.003;
constexpr double kSurelyRuns = 0.9;

bool ever_failed(const Config& config, std::span<const Trial> history) {
  return std::any_of(history.begin(), history.end(),
                     [&](const Trial& trial) { return !measured(trial) && trial.config == config; });
}

bool ever_ran(const Config& config, std::span<const Trial> history) {
  return std::any_of(history.begin(), history.end(),
                     [&](const Trial& trial) { return measured(trial) && trial.config == config; });
}

}  // namespace

std::optional<Config> choose_setting(const Space& space, const Evidence& evidence, std::span<const Trial> history) {
  if (evidence.leaders().empty()) return std::nullopt;
  const Candidate& leader = evidence.leaders().front();
  Config setting = leader.config;
  if (!space.has_default() || !ever_ran(space.default_config(), history)) return setting;
  double here = leader.speed.mean;
  for (std::size_t step = 0; step < space.size(); ++step) {
    std::optional<Candidate> cheapest;
    for (std::size_t knob = 0; knob < space.size(); ++knob) {
      const std::optional<Config> back = space.set_back(setting, knob);
      if (!back || *back == setting || ever_failed(*back, history)) continue;
      Candidate candidate = judge(evidence.beliefs(), *back);
      if (candidate.runs < kSurelyRuns || (cheapest && candidate.speed.mean <= cheapest->speed.mean)) continue;
      cheapest = std::move(candidate);
    }
    if (!cheapest || here - cheapest->speed.mean > kWorthNothing) break;
    if (leader.speed.mean - cheapest->speed.mean > kGivenAwayAtMost) break;
    here = cheapest->speed.mean;
    setting = std::move(cheapest->config);
  }
  return setting;
}

}  // namespace lockstep::tune
