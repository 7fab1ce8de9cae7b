// Micro-batches so small that what each of them costs, whatever it holds, is a good part of the step.
#include <fmt/format.h>

#include <algorithm>

#include "lockstep/base/units.h"
#include "lockstep/cost/flops.h"
#include "lockstep/cost/price.h"
#include "lockstep/diagnose/detectors/detectors.h"
#include "lockstep/plan/verdict.h"

namespace lockstep::diagnose {
namespace {

// Forward and backward of one layer whatever it holds: calls of operators, nodes of autograd, launches of kernels.
// Measured on one core with four layers of width 64: 64 micro-batches of a sequence take 97 ms, one of 64 sequences 69.
// An estimate elsewhere, so what arithmetic must take is kept out.
constexpr double kLayerSeconds = 0.1e-3;
constexpr double kCoreFlops = 1e11;              // a second; no core is faster
constexpr std::int64_t kManyMicroBatches = 8;    // of a step; of a pipeline, for each stage
constexpr std::int64_t kEnoughForAPipeline = 4;  // for each stage: the bubble is small then
constexpr double kAcceptedFixedShare = 0.2;      // of the step
constexpr double kSmallFixedShare = 0.05;        // no need to merge further
constexpr double kRoomToSpare = 0.9;             // of the capacity may be used

// What arithmetic of one micro-batch takes a rank at the very least.
double arithmetic_seconds(const RunEvidence& evidence) {
  const plan::Run& run = *evidence.run;
  const spec::Device& device = run.cluster.groups.front().device;
  const std::int64_t threads = evidence.plan ? evidence.plan->best.knobs.threads_per_rank : 1;
  const double rate =
      device.is_cpu() ? kCoreFlops * static_cast<double>(std::max<std::int64_t>(1, threads)) : device.peak_bf16_flops;
  if (rate <= 0.0) return 0.0;
  const auto tokens = static_cast<double>(run.batch.micro * run.batch.sequence_length);
  const auto parts = static_cast<double>(run.layout.tp * run.layout.cp * run.layout.pp);
  return cost::mfu_flops_per_token(run.model, run.batch.sequence_length) * tokens / parts / rate;
}

plan::Run merged(const plan::Run& run, std::int64_t factor) {
  plan::Run larger = run;
  larger.batch.micro *= factor;
  larger.batch.accumulation = std::max<std::int64_t>(1, larger.batch.accumulation / factor);
  return larger;
}

bool has_room(const RunEvidence& evidence, const plan::Run& larger) {
  if (plan::first_refusal(larger)) return false;
  const double capacity = evidence.plan ? evidence.plan->best.memory.capacity : 0.0;
  if (capacity <= 0.0) return true;
  const double more = cost::memory_of(larger, nullptr).total() - cost::memory_of(*evidence.run, nullptr).total();
  return evidence.plan->best.memory.total() + more <= kRoomToSpare * capacity;
}

}  // namespace

Findings find_launch_bound(const RunEvidence& evidence) {
  if (!evidence.run || !evidence.run->model.is_language_model() || evidence.step_seconds <= 0.0) return {};
  const plan::Run& run = *evidence.run;
  if (run.executor == plan::Executor::kFused) return {};  // its step is recorded once and launched as a whole
  const std::int64_t micro_batches = run.most_micro_steps(), stages = run.layout.pp;
  if (micro_batches < kManyMicroBatches * stages) return {};
  const double each = evidence.usual(telemetry::metric::kComputeSeconds) / static_cast<double>(micro_batches);
  const double layers = static_cast<double>(run.model.layers) / static_cast<double>(stages);
  const double fixed = std::min(kLayerSeconds * (layers + 1.0), each - arithmetic_seconds(evidence));
  const double share = fixed * static_cast<double>(micro_batches) / evidence.step_seconds;
  if (share <= kAcceptedFixedShare) return {};
  const std::int64_t enough = stages > 1 ? kEnoughForAPipeline * stages : 1;
  std::int64_t factor = 1;
  while (micro_batches % (2 * factor) == 0 && micro_batches / (2 * factor) >= enough &&
         share / static_cast<double>(factor) > kSmallFixedShare && has_room(evidence, merged(run, 2 * factor))) {
    factor *= 2;
  }
  if (factor == 1) return {};
  std::string overrides = fmt::format("batch.micro={}", factor * run.batch.micro);
  const bool counts_itself = evidence.job && evidence.job->batch.global > 0;
  if (!counts_itself) overrides += fmt::format(" batch.accumulation={}", micro_batches / factor);
  return {make_finding(
      Cause::kLaunchBound, 0.7, 100.0 * share * (1.0 - 1.0 / static_cast<double>(factor)), {},
      fmt::format(
          "{} micro-batches of {} a step take {} each for {:.0f} layers; about {} of that is spent on calls and "
          "launches, whatever they hold",
          micro_batches, run.batch.micro, format_seconds(each), layers, format_seconds(fixed)),
      train_with(evidence, overrides) + ": the same batch in fewer pieces")};
}

}  // namespace lockstep::diagnose
