// Time and volume of collectives. Volumes are those of the ring algorithms (Patarasuk & Yuan 2009, "Bandwidth optimal
// all-reduce algorithms for clusters of workstations"); times come from the sweep in the Profile.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/cost/profile/profile.h"

namespace lockstep::cost {

// Bytes that one rank sends for a collective whose whole message (reduced buffer, gathered result) has `bytes` bytes:
// all-reduce 2(n-1)/n, reduce-scatter and all-gather and all-to-all (n-1)/n, broadcast and send 1 (n > 1). 0 for one
// rank.
double ring_bytes_per_rank(CollectiveOp op, double bytes, std::int64_t ranks);

// Steps of the ring, each one latency: all-reduce 2(n-1), the others n-1, send 1.
std::int64_t ring_steps(CollectiveOp op, std::int64_t ranks);

// Seconds of one collective, alone on the links: interpolated (in bytes, on log scales) in the sweep for this op and
// number of ranks; beyond its ends by the latency of the smallest and the bandwidth of the largest message. Other group
// sizes scale the nearest measured one by ring steps and ring volume; an op that was not swept is priced from
// all-reduce. Nothing when the profile has no collective at all and ranks > 1. 0 for one rank or no bytes.
std::optional<double> collective_seconds(const Profile& profile, CollectiveOp op, double bytes, std::int64_t ranks);

}  // namespace lockstep::cost
