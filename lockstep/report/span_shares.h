// What spans add to the metrics of a run: which communication ranks are blocked on, and how much is computed again.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "lockstep/report/run_facts.h"

namespace lockstep::report {

// Who communicates: tensor, context, expert, pipeline, or data parallel ranks (replicas and shards).
enum class CommAxis : std::uint8_t { kTensor = 0, kContext, kExpert, kPipeline, kData };
inline constexpr std::size_t kCommAxes = 5;
constexpr auto names_of(CommAxis) { return enum_names<CommAxis::kData>("tp", "cp", "ep", "pp", "dp"); }

// Of a group's name as communicators have it, members behind a colon: "tp:0-24/8" is tensor parallel; what is none of
// the others is data.
CommAxis axis_of_group(std::string_view group);

struct SpanShares {
  std::int64_t steps = 0;                   // that were looked at; 0: the run kept no spans
  std::array<double, kCommAxes> blocked{};  // seconds in which ranks were blocked, by axis
  double compute_seconds = 0.0;             // forward and backward, recomputation included
  double recompute_seconds = 0.0;
};

// Of at most `most_steps` of the last steps whose spans are kept.
SpanShares read_span_shares(const telemetry::RunStore& store, const RunFacts& facts, std::size_t most_steps = 20);

}  // namespace lockstep::report
