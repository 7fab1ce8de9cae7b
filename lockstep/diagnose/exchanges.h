// Collectives and messages as all their members saw them: who came last, how long the others waited for it, and what
// the transfer itself took. From spans; pure functions.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "lockstep/telemetry/span.h"

namespace lockstep::diagnose {

struct Member {
  int rank = 0;
  double begin = 0.0, end = 0.0;  // seconds since 1970, clocks of the nodes aligned
};

struct Exchange {
  std::int64_t step = 0;
  std::string name;   // "all_reduce (dp: gradients)", ...
  std::string group;  // "dp", "world/tp1", ...
  std::int64_t bytes = 0;
  std::vector<Member> members;  // two at least, by rank

  bool is_message() const;  // between two: whoever sends comes when it has something, which is no lateness
  double last_begin() const;
  int last_rank() const;
  // How much earlier it could have begun had the last come with the one before it.
  double lateness() const;
  // From when everybody was there until the last was done: the transfer, without anybody's waiting.
  double transfer_seconds() const;
};

// Spans of kind kCollective on lane kComm with the same step, group and sequence on two ranks or more. Clocks are
// aligned by the ends of collectives, which are nearly simultaneous, where `align` says that ranks are on several
// nodes.
std::vector<Exchange> match_exchanges(std::span<const telemetry::SpanBatch> batches, bool align);

// One rank's part in the exchanges, per step.
struct Part {
  double late = 0.0;          // they began so much later because of it
  double waited = 0.0;        // it was there and a peer was not
  double moved = 0.0;         // everybody was there
  double moved_beyond = 0.0;  // of that, longer than its peers in the same exchanges
  int exchanges = 0;          // of all steps
  // Of the time it was in exchanges.
  double moved_share() const { return waited + moved > 0.0 ? moved / (waited + moved) : 0.0; }
};
// [world]; all zero without exchanges.
std::vector<Part> parts_by_rank(std::span<const Exchange> exchanges, int world);

}  // namespace lockstep::diagnose
