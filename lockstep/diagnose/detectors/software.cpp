// Work that need not be done: activations computed again though there is room to keep them, and a program that keeps
// its device waiting.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "lockstep/base/units.h"
#include "lockstep/cost/price.h"
#include "lockstep/diagnose/detectors/detectors.h"
#include "lockstep/diagnose/statistics.h"
#include "lockstep/plan/verdict.h"

namespace lockstep::diagnose {
namespace {

namespace metric = telemetry::metric;

constexpr double kRoomToSpare = 0.9;  // of the capacity may be used
constexpr double kAcceptedHostShare = 0.15;

double recompute_seconds(const RunEvidence& evidence) {
  double seconds = 0.0;
  std::set<std::pair<std::int64_t, int>> batches;
  for (const telemetry::SpanBatch& batch : evidence.spans) {
    batches.emplace(batch.step, batch.rank);
    for (const telemetry::Span& span : batch.spans) {
      if (span.kind == telemetry::SpanKind::kRecompute) seconds += span.seconds;
    }
  }
  if (!batches.empty() && seconds > 0.0) return seconds / static_cast<double>(batches.size());
  // Full recomputation is the forward pass once more.
  const bool full = evidence.run->layout.recompute == plan::Recompute::kFull;
  return full ? evidence.usual(metric::kForwardSeconds) : 0.0;
}

}  // namespace

Findings find_recompute(const RunEvidence& evidence) {
  if (!evidence.run || !evidence.plan || evidence.run->layout.recompute == plan::Recompute::kNone) return {};
  const double capacity = evidence.plan->best.memory.capacity;
  plan::Run without = *evidence.run;
  without.layout.recompute = plan::Recompute::kNone;
  if (capacity <= 0.0 || plan::first_refusal(without)) return {};
  const double now = cost::memory_of(*evidence.run, nullptr).total(), then = cost::memory_of(without, nullptr).total();
  // What the framework holds beside is measured, or what the plan thought.
  const double beside = std::max(0.0, evidence.plan->best.memory.total() - now);
  if (then + beside > kRoomToSpare * capacity) return {};
  const double seconds = recompute_seconds(evidence);
  return {
      make_finding(Cause::kRecompute, 0.85, evidence.share(seconds), {},
                   fmt::format("{} a step go into computing activations again; keeping them takes {} of {} per rank",
                               format_seconds(seconds), format_bytes(then + beside), format_bytes(capacity)),
                   train_with(evidence, "layout.recompute=none"))};
}

Findings find_host_bound(const RunEvidence& evidence) {
  if (!evidence.has(metric::kHostSeconds)) return {};
  const double host = evidence.usual(metric::kHostSeconds);
  if (host <= kAcceptedHostShare * evidence.step_seconds) return {};
  return {make_finding(
      Cause::kHostBound, 0.7, evidence.share(host), {},
      fmt::format("{} of a {} step go into the program around forward, backward and update", format_seconds(host),
                  format_seconds(evidence.step_seconds)),
      train_with(evidence, "batch.micro=" + std::to_string(evidence.run ? 2 * evidence.run->batch.micro : 2)) +
          ": more work per step; fewer evaluations and checks")};
}

}  // namespace lockstep::diagnose
