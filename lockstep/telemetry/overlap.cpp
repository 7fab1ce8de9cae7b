#include "lockstep/telemetry/overlap.h"

#include <algorithm>

namespace lockstep::telemetry {
namespace {

template <class Which>
std::vector<Interval> intervals_of(const SpanBatch& batch, const Which& which) {
  std::vector<Interval> intervals;
  for (const Span& span : batch.spans) {
    const auto begin = static_cast<double>(span.begin);
    if (which(span) && span.seconds > 0.0F) intervals.push_back({begin, begin + static_cast<double>(span.seconds)});
  }
  return united(std::move(intervals));
}

}  // namespace

std::vector<Interval> united(std::vector<Interval> intervals) {
  std::sort(intervals.begin(), intervals.end(), [](const Interval& a, const Interval& b) { return a.begin < b.begin; });
  std::vector<Interval> result;
  for (const Interval& interval : intervals) {
    if (!result.empty() && interval.begin <= result.back().end)
      result.back().end = std::max(result.back().end, interval.end);
    else
      result.push_back(interval);
  }
  return result;
}

std::vector<Interval> without(const std::vector<Interval>& whole, const std::vector<Interval>& holes) {
  std::vector<Interval> left;
  auto hole = holes.begin();
  for (Interval rest : whole) {
    while (hole != holes.end() && hole->end <= rest.begin) ++hole;
    for (auto next = hole; next != holes.end() && next->begin < rest.end; ++next) {
      if (next->begin > rest.begin) left.push_back({rest.begin, next->begin});
      rest.begin = std::max(rest.begin, next->end);
    }
    if (rest.begin < rest.end) left.push_back(rest);
  }
  return left;
}

double length(const std::vector<Interval>& united_intervals) {
  double sum = 0.0;
  for (const Interval& interval : united_intervals) sum += interval.end - interval.begin;
  return sum;
}

double common_length(const std::vector<Interval>& a, const std::vector<Interval>& b) {
  double sum = 0.0;
  for (auto x = a.begin(), y = b.begin(); x != a.end() && y != b.end();) {
    sum += std::max(0.0, std::min(x->end, y->end) - std::max(x->begin, y->begin));
    (x->end < y->end ? ++x : ++y);
  }
  return sum;
}

bool is_compute(const Span& span) {
  switch (span.kind) {
    case SpanKind::kForward:
    case SpanKind::kBackward:
    case SpanKind::kRecompute:
    case SpanKind::kWeightGradient:
    case SpanKind::kOptimizer:
      return span.lane == SpanLane::kMain || span.lane == SpanLane::kDevice;
    default:
      return false;
  }
}

bool is_communication(const Span& span) { return span.kind == SpanKind::kCollective; }

bool is_blocked(const Span& span) {
  return span.lane == SpanLane::kMain && (span.kind == SpanKind::kWait || span.kind == SpanKind::kLoad);
}

Overlap& Overlap::operator+=(const Overlap& other) {
  compute_seconds += other.compute_seconds;
  comm_seconds += other.comm_seconds;
  overlap_seconds += other.overlap_seconds;
  return *this;
}

Overlap overlap_of(const SpanBatch& batch) {
  const auto compute = without(intervals_of(batch, is_compute), intervals_of(batch, is_blocked));
  const auto communication = intervals_of(batch, is_communication);
  return {length(compute), length(communication), common_length(compute, communication)};
}

Overlap overlap_of(std::span<const SpanBatch> batches) {
  Overlap sum;
  for (const SpanBatch& batch : batches) sum += overlap_of(batch);
  return sum;
}

}  // namespace lockstep::telemetry
