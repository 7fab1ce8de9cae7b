// A pipeline that stands idle because too few micro-batches fill it.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "lockstep/base/units.h"
#include "lockstep/diagnose/detectors/detectors.h"
#include "lockstep/plan/pipeline_schedule.h"

namespace lockstep::diagnose {
namespace {

// With four micro-batches per stage the bubble is small (Huang et al. 2019); it is then a fifth at most.
constexpr double kAcceptedIdle = 0.2;

struct Remedy {
  std::string overrides, why;
  double idle = 1.0;
};

// Share of the pipeline that is idle when stages are alike and messages take no time.
double idle_of(plan::Schedule schedule, const plan::Layout& layout, std::int64_t micro_batches) {
  const auto table = plan::make_pipeline_schedule(
      schedule, static_cast<int>(layout.pp), static_cast<int>(layout.virtual_stages), static_cast<int>(micro_batches));
  const plan::TaskSeconds equal = {.forward = 1.0, .backward_input = 1.0, .backward_weight = 1.0, .send = 0.0};
  return plan::idle_share(
      plan::play(table, std::vector<plan::TaskSeconds>(static_cast<std::size_t>(table.positions()), equal)),
      table.stages);
}

Remedy remedy_for(const plan::Run& run, std::int64_t micro_batches) {
  const plan::Layout& layout = run.layout;
  const std::int64_t wanted = 4 * layout.pp;
  if (run.batch.micro > 1) {
    std::int64_t factor = 2;
    while (run.batch.micro % (2 * factor) == 0 && micro_batches * factor < wanted) factor *= 2;
    if (run.batch.micro % factor == 0) {
      return {fmt::format("batch.micro={} batch.accumulation={}", run.batch.micro / factor, micro_batches * factor),
              "the same batch in more pieces", idle_of(layout.schedule, layout, micro_batches * factor)};
    }
  }
  return {fmt::format("batch.accumulation={}", wanted),
          "more micro-batches in a step; the batch grows, so check the learning rate",
          idle_of(layout.schedule, layout, wanted)};
}

}  // namespace

Findings find_bubble(const RunEvidence& evidence) {
  if (!evidence.run || evidence.run->layout.pp < 2) return {};
  const plan::Run& run = *evidence.run;
  const std::int64_t micro_batches = run.most_micro_steps();
  const double idle = idle_of(run.layout.schedule, run.layout, micro_batches);
  if (idle <= kAcceptedIdle) return {};
  // What was measured must show it: ranks blocked on their neighbours for about that long.
  const double blocked =
      evidence.usual(telemetry::metric::kExposedCommSeconds) / std::max(evidence.step_seconds, 1e-12);
  if (evidence.has(telemetry::metric::kExposedCommSeconds) && blocked < 0.5 * idle) return {};
  const Remedy remedy = remedy_for(run, micro_batches);
  Finding finding = make_finding(
      Cause::kBubble, 0.85,
      100.0 * (evidence.has(telemetry::metric::kExposedCommSeconds) ? std::min(idle, blocked) : idle), {},
      fmt::format(
          "{} micro-batches pass {} stages under {}: {:.0f}% of the pipeline is idle by its schedule alone, and ranks "
          "are blocked {:.0f}% of the step",
          micro_batches, run.layout.pp, plan::to_string(run.layout.schedule), 100.0 * idle, 100.0 * blocked),
      train_with(evidence, remedy.overrides) + ": " + remedy.why);
  finding.gain_percent = 100.0 * ((1.0 - remedy.idle) / (1.0 - idle) - 1.0);
  return {finding};
}

}  // namespace lockstep::diagnose
