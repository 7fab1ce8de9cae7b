#include "lockstep/report/span_shares.h"

#include <algorithm>
#include <cctype>

namespace lockstep::report {

using telemetry::Span;
using telemetry::SpanKind;
using telemetry::SpanLane;

CommAxis axis_of_group(std::string_view group) {
  group = group.substr(0, group.find(':'));  // the members
  if (const auto slash = group.rfind('/'); slash != std::string_view::npos) group.remove_prefix(slash + 1);
  const auto letters = std::find_if(group.begin(), group.end(), [](unsigned char c) { return std::isalpha(c) == 0; });
  const std::string_view name = group.substr(0, static_cast<std::size_t>(letters - group.begin()));
  for (std::size_t axis = 0; axis + 1 < kCommAxes; ++axis) {
    if (name == to_string(static_cast<CommAxis>(axis))) return static_cast<CommAxis>(axis);
  }
  return CommAxis::kData;
}

SpanShares read_span_shares(const telemetry::RunStore& store, const RunFacts& facts, std::size_t most_steps) {
  SpanShares shares;
  const std::string& run = facts.run.info.id;
  std::vector<std::int64_t> steps = store.span_steps(run);
  std::erase_if(steps, [&](std::int64_t step) { return step < facts.counted_from; });
  if (steps.size() > most_steps) steps.erase(steps.begin(), steps.end() - static_cast<std::ptrdiff_t>(most_steps));
  for (const std::int64_t step : steps) {
    ++shares.steps;
    for (const telemetry::SpanBatch& batch : store.spans(run, step, step)) {
      for (const Span& span : batch.spans) {
        if (span.lane != SpanLane::kMain) continue;
        const double seconds = span.seconds;
        if (span.kind == SpanKind::kWait) {
          shares.blocked[static_cast<std::size_t>(axis_of_group(batch.text(span.group)))] += seconds;
        } else if (span.kind == SpanKind::kForward || span.kind == SpanKind::kBackward ||
                   span.kind == SpanKind::kWeightGradient) {
          shares.compute_seconds += seconds;
        } else if (span.kind == SpanKind::kRecompute) {
          shares.recompute_seconds += seconds;
        }
      }
    }
  }
  return shares;
}

}  // namespace lockstep::report
