#include "lockstep/spec/batch_schedule.h"

#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/error.h"

namespace lockstep::spec {
namespace {

std::int64_t ceil_divide(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

bool is_in(const BatchSchedule::Phase& phase, std::int64_t step, std::int64_t samples) {
  if (phase.until_steps > 0) return step < phase.until_steps;
  return phase.until_samples == 0 || samples < phase.until_samples;
}

}  // namespace

const BatchSchedule::Phase& BatchSchedule::phase_at(std::int64_t step, std::int64_t samples) const {
  const auto found = std::find_if(phases.begin(), phases.end(), [&](const auto& p) { return is_in(p, step, samples); });
  return found == phases.end() ? phases.back() : *found;
}

std::int64_t BatchSchedule::largest() const {
  return std::max_element(phases.begin(), phases.end(),
                          [](const Phase& a, const Phase& b) { return a.global < b.global; })
      ->global;
}

BatchSchedule batch_schedule(const Batch& batch, std::int64_t data_ranks, std::int64_t tokens_per_sample) {
  const auto samples = [&](std::int64_t accumulation, std::int64_t global) {
    return global > 0 ? global : batch.micro * accumulation * data_ranks;
  };
  BatchSchedule schedule;
  schedule.phases.clear();
  for (const BatchPhase& given : batch.schedule) {
    BatchSchedule::Phase phase{0, 0, samples(given.accumulation, given.global)};
    if (given.unit == BatchUnit::kSteps) phase.until_steps = given.until;
    if (given.unit == BatchUnit::kSamples) phase.until_samples = given.until;
    if (given.unit == BatchUnit::kTokens) {
      phase.until_samples = ceil_divide(given.until, std::max<std::int64_t>(1, tokens_per_sample));
    }
    schedule.phases.push_back(phase);
  }
  schedule.phases.push_back({0, 0, samples(batch.accumulation, batch.global)});
  return schedule;
}

std::int64_t micro_steps_of(std::int64_t global, std::int64_t micro, std::int64_t data_ranks) {
  return std::max<std::int64_t>(1, ceil_divide(global, micro * data_ranks));
}

std::int64_t steps_until(const BatchSchedule& schedule, std::int64_t epoch, std::int64_t step, std::int64_t samples,
                         std::int64_t wanted) {
  LOCKSTEP_ASSERT(epoch > 0, "an epoch has samples");
  std::int64_t steps = 0;
  while (samples < wanted) {
    const BatchSchedule::Phase& phase = schedule.phase_at(step + steps, samples);
    const std::int64_t global = phase.global, used = samples % epoch;
    const bool last = phase.until_steps == 0 && phase.until_samples == 0;
    // The last phase has whole epochs that are all alike.
    if (last && used == 0 && wanted - samples >= epoch) {
      const std::int64_t epochs = (wanted - samples) / epoch;
      steps += epochs * ceil_divide(epoch, global);
      samples += epochs * epoch;
      continue;
    }
    // Steps of this phase in what is left of this epoch.
    const std::int64_t left = std::min(epoch - used, wanted - samples);
    std::int64_t now = ceil_divide(left, global);
    if (phase.until_steps > 0) now = std::min(now, phase.until_steps - step - steps);
    if (phase.until_samples > 0) now = std::min(now, ceil_divide(phase.until_samples - samples, global));
    steps += now;
    samples += std::min(now * global, epoch - used);
  }
  return steps;
}

std::string to_string(const BatchSchedule& schedule) {
  std::string text;
  for (const BatchSchedule::Phase& phase : schedule.phases) {
    text += fmt::format("{}{}", text.empty() ? "" : ", then ", phase.global);
    if (phase.until_steps > 0) text += fmt::format(" until step {}", phase.until_steps);
    if (phase.until_samples > 0) text += fmt::format(" until {} samples", phase.until_samples);
  }
  return text;
}

}  // namespace lockstep::spec
