// How much of a rank's communication is hidden behind computing: the figure that HTA calls comp_comm_overlap.
#pragma once

#include <span>
#include <vector>

#include "lockstep/telemetry/span.h"

namespace lockstep::telemetry {

struct Interval {
  double begin = 0.0, end = 0.0;  // seconds, begin < end
};

// Sorted, overlaps joined.
std::vector<Interval> united(std::vector<Interval> intervals);
// What of `whole` is in none of `holes`; both as united() gives them.
std::vector<Interval> without(const std::vector<Interval>& whole, const std::vector<Interval>& holes);
double length(const std::vector<Interval>& united_intervals);
// Of what is in both.
double common_length(const std::vector<Interval>& a, const std::vector<Interval>& b);

// Forward, backward, recomputation and optimizer.
bool is_compute(const Span& span);
bool is_communication(const Span& span);
// The rank does nothing of its own: it waits, for others or for data.
bool is_blocked(const Span& span);

struct Overlap {
  double compute_seconds = 0.0;  // in which the rank computed: without what it waited inside of a forward, ...
  double comm_seconds = 0.0;     // in which something was exchanged
  double overlap_seconds = 0.0;  // in which both happened

  double share() const { return comm_seconds > 0.0 ? overlap_seconds / comm_seconds : 0.0; }  // of communication
  Overlap& operator+=(const Overlap& other);
};

// Of one rank and step.
Overlap overlap_of(const SpanBatch& batch);
// Added up over batches of one rank.
Overlap overlap_of(std::span<const SpanBatch> batches);

}  // namespace lockstep::telemetry
