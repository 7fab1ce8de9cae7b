// Ranks that wait for data.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "lockstep/base/units.h"
#include "lockstep/diagnose/detectors/detectors.h"
#include "lockstep/diagnose/statistics.h"

namespace lockstep::diagnose {
namespace {

using telemetry::SpanKind;
using telemetry::SpanLane;

// Seconds that the loader threads of `rank` work for one step; 0 without spans.
double loading_seconds(const RunEvidence& evidence, int rank) {
  double seconds = 0.0;
  std::set<std::int64_t> steps;
  for (const telemetry::SpanBatch& batch : evidence.spans) {
    if (batch.rank != rank) continue;
    steps.insert(batch.step);
    for (const telemetry::Span& span : batch.spans) {
      if (span.kind == SpanKind::kLoad && span.lane == SpanLane::kLoader) seconds += span.seconds;
    }
  }
  return steps.empty() ? 0.0 : seconds / static_cast<double>(steps.size());
}

}  // namespace

Findings find_loader(const RunEvidence& evidence) {
  std::vector<double> waits;
  waits.reserve(static_cast<std::size_t>(evidence.world()));
  for (int rank = 0; rank < evidence.world(); ++rank) {
    waits.push_back(trimmed_mean(evidence.of(telemetry::metric::kDataSeconds, rank)));
  }
  const auto worst = static_cast<int>(std::max_element(waits.begin(), waits.end()) - waits.begin());
  const double longest = waits[static_cast<std::size_t>(worst)];
  if (longest <= 0.0) return {};
  std::vector<int> ranks;
  for (int rank = 0; rank < evidence.world(); ++rank) {
    if (waits[static_cast<std::size_t>(rank)] > 0.5 * longest) ranks.push_back(rank);
  }
  if (static_cast<int>(ranks.size()) == evidence.world() && evidence.world() > 1) ranks.clear();
  const std::int64_t workers =
      evidence.run ? std::max<std::int64_t>(evidence.plan ? evidence.plan->best.knobs.num_workers : 1, 0) : 0;
  const double loading = loading_seconds(evidence, worst);
  const double rest = std::max(evidence.step_seconds - longest, 1e-9);
  const std::int64_t wanted =
      loading > 0.0 ? std::max<std::int64_t>(workers + 1, static_cast<std::int64_t>(std::ceil(1.2 * loading / rest)))
                    : std::max<std::int64_t>(2, 2 * workers);
  std::string text =
      fmt::format("{} wait{} {} of a {} step for data", ranks.empty() ? "all ranks" : named_ranks(ranks),
                  ranks.size() == 1 ? "s" : "", format_seconds(longest), format_seconds(evidence.step_seconds));
  if (loading > 0.0)
    text += fmt::format("; making its batches takes {} of {} loader thread{}", format_seconds(loading), workers,
                        workers == 1 ? "" : "s");
  const std::string where = ranks.size() == 1 ? "; or look at the storage of that rank's node" : "";
  return {make_finding(
      Cause::kLoader, 0.9, evidence.share(longest), ranks, text,
      (evidence.row.info.backend == "python" ? fmt::format("give the DataLoader of the script num_workers={}", wanted)
                                             : train_with(evidence, fmt::format("loader.num_workers={}", wanted))) +
          where)};
}

}  // namespace lockstep::diagnose
