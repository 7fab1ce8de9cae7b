// Spans: what a rank did when, step by step. The same schema for recorded, foreign and simulated runs
// (docs/reference/run-store.md).
//
// Plain values. A batch holds the spans of one rank in one step; texts are numbers into its table of names, so that a
// producer neither allocates nor copies text for every span.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/enum_names.h"

namespace lockstep::telemetry {

enum class SpanKind : std::uint8_t {
  kStep = 0,        // the whole step; one per batch
  kLoad,            // the rank waits for the loader, or (lane kLoader) a loader thread makes a batch
  kForward,         // of one micro-batch through one chunk
  kBackward,        // the same; recomputation inside it is a span of its own
  kRecompute,       // forward again, inside a backward
  kWeightGradient,  // the second half of a split backward
  kCollective,      // on lane kComm: from when this rank's part begins to execute until it is done
  kWait,            // the rank is blocked: on a collective or a message that is not done
  kOptimizer,
  kPublish,     // weights after the update: all-gather of ZeRO, copies
  kCheckpoint,  // on lane kMain: the stall; on lane kSaver: the write in the background
  kSnapshot,
  kEvaluation,
  kHost,  // anything else that has a name
};
constexpr auto names_of(SpanKind) {
  return enum_names<SpanKind::kHost>("step", "load", "forward", "backward", "recompute", "weight_gradient",
                                     "collective", "wait", "optimizer", "publish", "checkpoint", "snapshot",
                                     "evaluation", "host");
}

// Spans of one lane nest or follow each other; lanes run beside each other.
enum class SpanLane : std::uint8_t { kMain = 0, kComm, kLoader, kSaver, kDevice };
constexpr auto names_of(SpanLane) { return enum_names<SpanLane::kDevice>("main", "comm", "loader", "saver", "device"); }

struct Span {
  SpanKind kind = SpanKind::kHost;
  SpanLane lane = SpanLane::kMain;
  std::int16_t micro = -1;  // micro-batch of the step; -1: none
  std::int16_t stage = -1;  // global number of the pipeline chunk; -1: none
  std::int32_t name = -1;   // into SpanBatch::names: the call's site, "all_reduce", ...; -1: none
  std::int32_t group = -1;  // into SpanBatch::names: the group of a collective ("dp", "world/tp1", ...)
  std::int32_t peer = -1;   // global rank at the other end of a message, root of a broadcast
  float begin = 0.0F;       // seconds after SpanBatch::time
  float seconds = 0.0F;
  std::int64_t bytes = 0;      // of a collective or message, as comm::Traffic counts them
  std::int64_t sequence = -1;  // of the operation in its group: the same on all members, so that ranks can be matched
};

struct SpanBatch {
  int rank = 0;
  std::int64_t step = 0;  // as the metrics of the same step count: 1 is the first
  double time = 0.0;      // begin of the step, seconds since 1970 (UTC, this rank's clock)
  std::shared_ptr<const std::vector<std::string>> names;  // null: none are used
  std::vector<Span> spans;                                // by begin

  std::string_view text(std::int32_t number) const {
    return number < 0 || !names || static_cast<std::size_t>(number) >= names->size() ? std::string_view()
                                                                                     : (*names)[number];
  }
};

}  // namespace lockstep::telemetry
