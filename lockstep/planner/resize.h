// The same cluster in another size or with another fabric, for what-ifs and scaling.
#pragma once

#include <cstdint>

#include "lockstep/spec/cluster.h"

namespace lockstep::planner {

// At least `devices` more, as whole nodes of the first group; storage grows with the nodes. Returns how many it were.
std::int64_t add_devices(spec::Cluster& cluster, std::int64_t devices);

// `cluster` with `devices` devices in all: fewer or more nodes of its only group, or less than a node of it (NICs,
// failures and storage in proportion). Throws UserError (exit code 2) for a number that is not a whole number of nodes,
// and for clusters of several groups.
spec::Cluster resized(const spec::Cluster& cluster, std::int64_t devices);

// The same ports with InfiniBand's protocol exchanged for RoCE's or back; other kinds stay as they are. RoCE behind
// plain ECMP reaches 1/1.4 of the bandwidth of a tuned fabric, which in turn equals InfiniBand: Gangidi et al. 2024,
// "RDMA over Ethernet for Distributed AI Training at Meta Scale", report up to 40% for all-reduce.
spec::Link with_other_protocol(spec::Link link);

}  // namespace lockstep::planner
